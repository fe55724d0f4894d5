"""One strategy in full: every second and every byte, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from autoparallel_core.cost.model_flops import trained_flops_per_token
from autoparallel_core.cost.training_memory import device_bytes, overheads
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, StageMemory, TrainingFigures, Verdict
from autoparallel_core.spec.problem import Constant, Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host


def explain_strategy(problem: Problem, strategy: Strategy, host: Host | None = None) -> Plan:
    """Price one strategy with its breakdowns. Legality is not checked here (``autoparallel_core.search.rules``)."""
    plan = plan_at(problem, evaluate(problem, StrategyBatch.of([strategy]), host), 0)
    if problem.mode == "training" or strategy.pp == 1 or problem.calibration is not None:
        return plan
    from autoparallel_core.host import host as default_host
    from autoparallel_core.search.serving_stages import with_every_stage

    return with_every_stage(problem, plan, host or default_host())


class _Read(Mapping[str, Constant]):
    """Constants that remember which of them were asked for."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self._constants, self.names = constants, set[str]()

    def __getitem__(self, name: str) -> Constant:
        constant = self._constants[name]
        self.names.add(name)
        return constant

    def __iter__(self) -> Iterator[str]:
        return iter(self._constants)

    def __len__(self) -> int:
        return len(self._constants)


def constants_read(problem: Problem, strategy: Strategy, host: Host | None = None) -> frozenset[str]:
    """Names of the constants that the price of one strategy rests on."""
    read = _Read(problem.constants)
    explain_strategy(evolve(problem, constants=read), strategy, host)
    return frozenset(read.names)


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
    flops = trained_flops_per_token(problem)
    return Plan(
        strategy=strategy,
        cost=CostBreakdown(seconds),
        memory=_memory(problem, evaluation, i, layout.layers_per_stage),
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


def _memory(problem: Problem, evaluation: Evaluation, i: int, layers_per_stage: tuple[int, ...]) -> MemoryBreakdown:
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
        stages.append(_stage_memory(problem, index, layers_per_stage[index], parts))
    return MemoryBreakdown(
        stages=tuple(sorted(stages, key=lambda s: s.stage)),
        capacity_bytes=evaluation.capacity_bytes,
        reserved_bytes=float(evaluation.reserved_bytes[i]),
        host_bytes_per_node=float(evaluation.host_bytes_per_node[i]),
    )


def _stage_memory(problem: Problem, stage: int, layers: int, parts: dict[str, float]) -> StageMemory:
    arrays = {k: np.array([v]) for k, v in parts.items()}
    wanted = {k: float(v[0]) for k, v in overheads(problem, arrays).items()}
    reserved, _ = device_bytes(problem, arrays)
    squeezed = sum(parts.values()) + sum(wanted.values()) - float(reserved[0])
    shown = {**wanted, "allocator_slack": wanted["allocator_slack"] - squeezed}
    return StageMemory(
        stage=stage,
        layers=layers,
        bytes={k: v for k, v in parts.items() if v},
        overhead={k: v for k, v in shown.items() if v},
        squeezed_bytes=max(squeezed, 0.0),
    )
