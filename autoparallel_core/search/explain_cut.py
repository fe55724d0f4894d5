"""One training strategy in full, with pipeline stages that were chosen one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from autoparallel_core.cost.stages import cut_layout
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.explain import explain_strategy, plan_at
from autoparallel_core.search.result import Plan
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host


def explain_cut(problem: Problem, strategy: Strategy, cut: StageCut | None, host: Host | None = None) -> Plan:
    """Price one strategy with its breakdowns under a cut; None: the usual stages. Legality is not checked here."""
    if cut is None:
        return explain_strategy(problem, strategy, host)
    if cut.offloaded:
        problem = evolve(problem, software=evolve(problem.software, activation_offload_layers=cut.offloaded))
    priced = evaluate(problem, StrategyBatch.of([strategy]), host, layout=cut_layout(problem.arch, strategy.pp, cut))
    return evolve(plan_at(problem, priced, 0), cut=cut)
