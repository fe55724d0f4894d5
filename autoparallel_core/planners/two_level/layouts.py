"""From cuts to plans: the evaluator prices each layout in full and has the last word on the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from autoparallel_core.cost.stages import laid_out, stage_layout
from autoparallel_core.planners.two_level.cells import FULL, StageCells
from autoparallel_core.planners.two_level.cut import Cut
from autoparallel_core.planners.two_level.simulated import simulated
from autoparallel_core.planners.two_level.stage_model import StageModel, stage_model
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.explain import plan_at
from autoparallel_core.search.result import Plan, PlannedStage
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host


def plan_of(model: StageModel, i: int, cut: Cut, host: Host | None) -> Plan:
    """The plan of strategy ``i`` under a cut, priced by the evaluator, its pipeline event by event."""
    problem = model.problem
    batch = model.batch.take(np.array([i]))
    strategy = batch[0]
    layout = laid_out(problem.arch, strategy.pp, cut.layers, cut.full)
    e = evaluate(problem, batch, host, layout=layout)
    plan = simulated(plan_at(problem, e, 0), model, i, cut.layers, np.array(cut.full, dtype=np.float64))
    return evolve(plan, stages=_stages(model, i, strategy, cut, plan), cut=StageCut(cut.layers, cut.full))


def usual_plans(problem: Problem, plans: Sequence[Plan], host: Host | None) -> list[Plan]:
    """Plans of the usual spread with their pipelines event by event, so that they compare with :func:`plan_of`'s."""
    if not plans:
        return []
    model = stage_model(problem, StrategyBatch.of([p.strategy for p in plans]), host)
    out = []
    for i, plan in enumerate(plans):
        s = plan.strategy
        layout = stage_layout(problem.arch, s.pp, s.vpp, embedding_as_layer=problem.software.embedding_as_layer)
        ends = np.cumsum(layout.chunk_layers)
        counts = (model.prefix[ends] - model.prefix[ends - np.array(layout.chunk_layers)]).reshape(s.vpp, s.pp, -1).sum(axis=0)
        layers = np.maximum(counts.sum(axis=1, keepdims=True), 1)
        recomputed = np.minimum(s.recompute_layers or layers, layers) / layers if s.recompute == FULL else 0.0
        out.append(simulated(plan, model, i, layout.chunk_layers, counts * recomputed))
    return out


def _stages(model: StageModel, i: int, strategy: Strategy, cut: Cut, plan: Plan) -> tuple[PlannedStage, ...]:
    problem, p = model.problem, strategy.pp
    classes = [layer.kind for layer, _ in problem.arch.layer_classes()]
    ends = np.cumsum(cut.layers)
    begin, end = (np.reshape(a, (-1, p)).T for a in (ends - np.array(cut.layers), ends))
    at = np.arange(p)
    cells = StageCells(begin, end, at, at == 0, at == p - 1)
    counts, again = cells.counts(model), np.array(cut.full)
    time = stage_seconds(model, i, cells, again)
    memory = {s.stage: s.total_bytes for s in plan.memory.stages}
    held = [memory[s] if s in memory else _same_stage(s, counts, again, memory) for s in range(p)]
    return tuple(
        PlannedStage(
            stage=s,
            layers=tuple(int(b - a) for a, b in zip(begin[s], end[s], strict=True)),
            first_layers=tuple(int(a) for a in begin[s]),
            classes=_by_kind(classes, counts[s]),
            recomputed=_by_kind(classes, again[s]),
            strategy=strategy,
            gpu=problem.cluster.gpu.name,
            gpus=problem.cluster.n_gpus // p,
            time_s=float(time[s]),
            memory_bytes=held[s],
            capacity_bytes=problem.cluster.gpu.memory_bytes,
            embedding=s == 0,
            head=s == p - 1,
        )
        for s in range(p)
    )


def stage_seconds(model: StageModel, i: int, cells: StageCells, again: np.ndarray) -> np.ndarray:
    """Seconds of given stages with given layers recomputed by class, [N]."""
    n = cells.counts(model)
    return np.asarray(n @ model.time[i] + again @ model.again[i] + cells.first * model.first_s[i] + cells.last * model.last_s[i])


def _same_stage(s: int, counts: np.ndarray, again: np.ndarray, memory: dict[int, float]) -> float:
    """Bytes of the stage that stands for stage ``s``: the earliest of the same layers, which holds most in flight."""
    twin = next(t for t in range(s) if t in memory and (counts[t] == counts[s]).all() and (again[t] == again[s]).all())
    return memory[twin]


def _by_kind(classes: list[str], counts: np.ndarray) -> dict[str, int]:
    out: dict[str, int] = {}
    for kind, n in zip(classes, counts, strict=True):
        if n:
            out[kind] = out.get(kind, 0) + int(n)
    return out
