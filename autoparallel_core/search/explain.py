"""One strategy in full: every second and every byte, stage by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autoparallel_core.cost.model_flops import model_flops_per_token
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, StageMemory, TrainingFigures, Verdict
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host


def explain_strategy(problem: Problem, strategy: Strategy, host: Host | None = None) -> Plan:
    """Price one strategy with its breakdowns. Legality is not checked here (``autoparallel_core.search.rules``)."""
    return plan_at(problem, evaluate(problem, StrategyBatch.of([strategy]), host), 0)


def plan_at(problem: Problem, evaluation: Evaluation, i: int) -> Plan:
    """The plan of row ``i`` of an evaluation."""
    if problem.mode == "inference":
        from autoparallel_core.search.explain_serving import serving_plan_at

        return serving_plan_at(problem, evaluation, i)
    assert evaluation.training is not None
    strategy = evaluation.batch[i]
    seconds = {k: float(v[i]) for k, v in evaluation.seconds.items() if v[i]}
    total = float(evaluation.total_s[i])
    rate = float(evaluation.tokens_per_s_per_gpu[i])
    layout = evaluation.training.layouts[strategy.pp, strategy.vpp]
    flops = model_flops_per_token(problem.arch, problem.training.seq_len)
    return Plan(
        strategy=strategy,
        cost=CostBreakdown(seconds),
        memory=_memory(evaluation, i, layout.layers_per_stage),
        verdict=verdict_of(evaluation, i),
        training=TrainingFigures(
            step_s=total,
            tokens_per_s_per_gpu=rate,
            mfu=rate * flops / problem.cluster.gpu.peak(problem.cluster.gpu.wide_dtype),
            micro_batches=int(evaluation.training.micro_batches[i]),
            layers_per_stage=layout.layers_per_stage,
            bubble_fraction=seconds.get("bubble", 0.0) / total,
        ),
    )


def verdict_of(evaluation: Evaluation, i: int) -> Verdict:
    """In words."""
    if not evaluation.fits[i]:
        return "does not fit"
    return "tight" if evaluation.tight[i] else "fits"


def _memory(evaluation: Evaluation, i: int, layers_per_stage: tuple[int, ...]) -> MemoryBreakdown:
    """Per distinct stage; what engine plugins add to the deciding stage is added to each."""
    cost = evaluation.training
    assert cost is not None
    extra = {k: float(v[i] - (cost.memory[k][i] if k in cost.memory else 0.0)) for k, v in evaluation.memory.items()}
    stages = []
    for p in np.flatnonzero(cost.stage_index[i] >= 0):
        parts = {k: float(v[i, p]) for k, v in cost.stage_memory.items()}
        for k, v in extra.items():
            if v:
                parts[k] = parts.get(k, 0.0) + v
        index = int(cost.stage_index[i, p])
        stages.append(StageMemory(index, layers_per_stage[index], {k: v for k, v in parts.items() if v}))
    return MemoryBreakdown(
        stages=tuple(sorted(stages, key=lambda s: s.stage)),
        capacity_bytes=evaluation.capacity_bytes,
        reserved_bytes=float(evaluation.reserved_bytes[i]),
        host_bytes_per_node=float(evaluation.host_bytes_per_node[i]),
    )
