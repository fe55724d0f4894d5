"""Single stages whose first layers keep their activations in host memory, where the GPU's does not suffice.

For a strategy without pipeline and recompute the step grows with the number of such layers, so the least number that
fits is the best one; it follows from what is missing. The evaluator prices each number in full.

Axis legend: S strategies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from autoparallel_core.planners.two_level.stage_model import StageModel, stage_model
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.explain import plan_at
from autoparallel_core.search.result import Plan, PlannedStage
from autoparallel_core.search.rules import apply_rules, rules_for
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

MOST = 4096
"""Strategies that are tried, the most promising first."""


def with_layers_away(problem: Problem, layers: int) -> Problem:
    """The question when the first ``layers`` layers of a stage keep their activations in host memory."""
    return evolve(problem, software=evolve(problem.software, activation_offload_layers=layers))


def host_activation_plans(problem: Problem, batch: StrategyBatch, host: Host | None, keep: int) -> list[Plan]:
    """The ``keep`` fastest plans that fit, of strategies of one stage without recompute."""
    if not len(batch):
        return []
    batch = batch.take(slice(0, MOST))
    model = stage_model(problem, batch, host)
    found: list[tuple[float, int, Evaluation, int]] = []
    for n, rows in _groups(problem, [least_layers(model), least_layers(model.with_room())]):
        question = with_layers_away(problem, n)
        part = batch.take(rows)
        if host is not None:
            part = part.take(apply_rules(question, part, rules_for(question, host))[0])
        if not len(part):
            continue
        e = evaluate(question, part, host)
        order = [int(i) for i in np.argsort(e.total_s, kind="stable") if e.fits[i]]
        found += [(float(e.total_s[i]), n, e, i) for i in order[:keep]]
    found.sort(key=lambda x: x[0])
    return [_plan(problem, n, e, i) for _, n, e, i in found[:keep]]


def least_layers(model: StageModel) -> NDArray[np.int64]:
    """Fewest layers away with which each strategy fits, [S]; as many as the model has where none do."""
    n = model.prefix[-1].astype(np.float64)
    layers = float(n.sum())
    saved = model.saved @ n
    held = model.static @ n + model.constant + model.first_static + model.last_static + model.logits + model.last_saved + saved
    with np.errstate(divide="ignore", invalid="ignore"):
        need = np.ceil((held - model.budget) / saved * layers - 1e-9)
    return np.asarray(np.clip(np.nan_to_num(need, nan=layers, posinf=layers), 0, layers), dtype=np.int64)


def _groups(problem: Problem, needs: list[NDArray[np.int64]]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Rows by their number of layers; the last layer stays, as its backward follows at once."""
    for need in needs:
        for n in np.unique(need[(need > 0) & (need < problem.arch.num_layers)]):
            yield int(n), np.flatnonzero(need == n)


def _plan(problem: Problem, n: int, e: Evaluation, i: int) -> Plan:
    assert e.training is not None
    plan = plan_at(with_layers_away(problem, n), e, i)
    kinds: dict[str, int] = {}
    for layer, where in problem.arch.layer_classes():
        kinds[layer.kind] = kinds.get(layer.kind, 0) + len(where)
    stage = PlannedStage(
        stage=0,
        layers=(problem.arch.num_layers,),
        first_layers=(0,),
        classes=kinds,
        recomputed={},
        offloaded=n,
        strategy=plan.strategy,
        gpu=problem.cluster.gpu.name,
        gpus=problem.cluster.n_gpus,
        time_s=float(e.training.slowest_stage_s[i]),
        memory_bytes=plan.memory.allocated_bytes,
        capacity_bytes=problem.cluster.gpu.memory_bytes,
        embedding=True,
        head=True,
    )
    return evolve(plan, stages=(stage,), cut=StageCut((problem.arch.num_layers,), None, n))
