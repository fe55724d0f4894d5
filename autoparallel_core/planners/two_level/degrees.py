"""Stages of different sizes and degrees: each stage has its own (tp, cp, ep, etp, dp, zero) on GPUs of one kind.

All stages work on the same sequences at once (micro-batch times data-parallel ranks), which fixes the number of
micro-batches; within that, every way to run a stage is a submesh of the stage dynamic program
(:mod:`autoparallel_core.solve.stages`), with GPUs counted by kind. Recompute of a stage is the least that fits, as
everywhere. The best plans are re-scored event by event, with what the slowest stage adds outside the pipeline.

Of each kind and size the fastest ways that fit are kept, and of the sequences at once those that promise most; within these
the cuts are exact. Axis legend: M ways to run a stage, K stages counted from the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.stages import laid_out
from autoparallel_core.planners.two_level.cells import FULL, Granularity, StageCells, price_cells, stage_bytes
from autoparallel_core.planners.two_level.stage_model import PIPELINE_CAUSES, StageModel, stage_model
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.rules import rules_for
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.solve.schedule import makespan
from autoparallel_core.solve.stages import Stage, StageProblem, plan_stages
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
WAYS = 3
"""Ways to run a stage that are kept of each kind and size."""
AT_ONCE = 3
"""Numbers of sequences at once that get exact cuts."""
MOST_STAGES = 16
RESCORED = 12


@frozen(eq=False)
class Way:
    """One way to run a stage: row ``row`` of ``model``, which is of GPU kind ``kind``."""

    kind: int
    model: StageModel
    row: int
    gpus: int

    def layer_s(self, every: int) -> float:
        """Seconds per average layer if all of ``every`` GPUs ran stages of this size: recompute that fits, and what a step adds.

        Infinite where even recomputing everything does not fit.
        """
        model, i = self.model, self.row
        counts = model.prefix[-1].astype(np.float64)
        layers = counts.sum()
        time, again, static, saved, dropped = (
            float(x[i] @ counts) / layers for x in (model.time, model.again, model.static, model.saved, model.dropped)
        )
        stages, m = every / self.gpus, float(model.micro_batches[i])
        flight, share = min(m, (stages + 1) / 2), layers / stages
        free = float(model.budget[i] - model.constant[i] - (model.first_static[i] + model.last_static[i]) / stages)
        missing = share * (static + flight * saved) - free
        need = missing / max(share * flight * dropped, 1e-300)
        if need > 1:
            return np.inf
        return float(time + again * max(need, 0.0) + float(model.rest_s[i]) / (m * share))


@frozen(eq=False)
class DegreesPlan:
    """Stages in order, each with its way, layers and recomputed layers by class."""

    ways: tuple[Way, ...]
    first_layers: tuple[int, ...]
    layers: tuple[int, ...]
    full: tuple[tuple[int, ...], ...]
    time_s: tuple[float, ...]
    """Forward and backward of one micro-batch."""
    held_bytes: tuple[float, ...]
    micro_batches: int
    pipeline_s: float
    outside_s: float
    """Reduction and optimizer of the stage that takes longest."""
    slow: float
    """Factor on the whole step."""

    @property
    def step_s(self) -> float:
        return (self.pipeline_s + self.outside_s) * self.slow


def best_degrees(
    parts: Sequence[Problem], gpus: Sequence[int], space: Space, host: Host | None, recompute: Granularity
) -> tuple[list[DegreesPlan], int]:  # fmt: skip
    """Plans over the kinds of ``parts`` with ``gpus`` of each, best first, and how many ways were considered."""
    by_size: dict[int, list[Way]] = {}
    considered = 0
    for kind, part in enumerate(parts):
        for batch in enumerate_space(part, space, rules_for(part, host) if host is not None else ()):
            fitting = _stage_batch(part, batch, gpus[kind], sum(gpus))
            considered += len(fitting)
            for size, way in _ways(part, fitting, kind, host):
                by_size.setdefault(size, []).append(way)
    promising = sorted(
        (_promise(ways, gpus), size) for size, ways in by_size.items() if len(parts) == 1 or _all_kinds(ways, gpus)
    )
    plans: list[DegreesPlan] = []
    for promise, size in promising[:AT_ONCE]:
        if np.isfinite(promise):
            plans += cut_degrees(_kept(by_size[size], sum(gpus)), gpus, recompute, host)
    return sorted(plans, key=lambda p: p.step_s), considered


def _stage_batch(part: Problem, batch: StrategyBatch, gpus: int, every: int) -> StrategyBatch:
    """Rows that a stage on this kind may have; recompute of all stands for less of it."""
    size = batch.tp * batch.cp * batch.dp
    allowed = part.training.recompute_allowed
    plain = (
        (batch.vpp == 1) & (batch.recompute == (FULL if allowed else 0)) & (batch.recompute_layers == 0) & (batch.offload == 0)
    )
    few = every // np.maximum(size, 1) <= MOST_STAGES
    return batch.take(plain & few & (size <= gpus))


def _ways(part: Problem, batch: StrategyBatch, kind: int, host: Host | None) -> Iterator[tuple[int, Way]]:
    """(sequences at once, way) of each row."""
    if not len(batch):
        return
    model = stage_model(part, batch, host)
    for i in range(len(batch)):
        size = int(batch.tp[i] * batch.cp[i] * batch.dp[i])
        yield int(batch.mbs[i] * batch.dp[i]), Way(kind, model, i, size)


def _kept(ways: list[Way], every: int) -> list[Way]:
    """The fastest of each kind and size that fit."""
    groups: dict[tuple[int, int], list[tuple[float, Way]]] = {}
    for way in ways:
        groups.setdefault((way.kind, way.gpus), []).append((way.layer_s(every), way))
    best = (sorted((x for x in group if np.isfinite(x[0])), key=lambda x: x[0])[:WAYS] for group in groups.values())
    return [way for group in best for _, way in group]


def _all_kinds(ways: list[Way], gpus: Sequence[int]) -> bool:
    return {w.kind for w in ways} == set(range(len(gpus)))


def _promise(ways: list[Way], gpus: Sequence[int]) -> float:
    """Step of the best pipeline whose stages have one size and share the layers by their speed, infinite where none fits."""
    every = sum(gpus)
    best: dict[tuple[int, int], float] = {}
    for way in ways:
        best[way.gpus, way.kind] = min(best.get((way.gpus, way.kind), np.inf), way.layer_s(every))
    steps = [np.inf]
    m, layers = float(ways[0].model.micro_batches[ways[0].row]), float(ways[0].model.prefix[-1].sum())
    for size in {g for g, _ in best}:
        rate = sum(n / size / best.get((size, kind), np.inf) for kind, n in enumerate(gpus))
        if rate > 0:
            steps.append((m + every / size - 1) * layers / rate)
    return min(steps)


def cut_degrees(
    ways: Sequence[Way], gpus: Sequence[int], recompute: Granularity, host: Host | None = None
) -> list[DegreesPlan]:  # fmt: skip
    """Exact cuts of the chain over these ways, the best few re-scored by events, best first."""
    unit = gcd(*(w.gpus for w in ways), *gpus)
    units = np.array([[w.gpus // unit if k == w.kind else 0 for k in range(len(gpus))] for w in ways])
    total = [n // unit for n in gpus]
    smallest = min(w.gpus for w in ways)
    k_max = min(MOST_STAGES, sum(gpus) // smallest, len(ways[0].model.prefix))
    priced = [_times(w, k_max, recompute) for w in ways]
    m = int(ways[0].model.micro_batches[ways[0].row])
    answer = plan_stages(StageProblem.of(np.stack([t for t, _ in priced], axis=3), units, total, micro_batches=m), keep=RESCORED)
    plans = [_plan(ways, [x for _, x in priced], plan.stages, m, host) for plan in answer.plans]
    return sorted(plans, key=lambda p: p.step_s)


def _times(way: Way, k_max: int, recompute: Granularity) -> tuple[Array, IntArray]:
    """Seconds and recomputed layers by class of every interval with k stages to the end, [K, L + 1, L + 1(, C)]."""
    model, i = way.model, way.row
    n = len(model.prefix) - 1
    first, last = np.triu_indices(n + 1)
    k = np.repeat(np.arange(1, k_max + 1), len(first))
    begin, end = np.tile(first, k_max), np.tile(last, k_max)
    legal = ((end == n) == (k == 1)) & (n - end >= k - 1)
    k, begin, end = k[legal], begin[legal], end[legal]
    stop = np.minimum(end + 1, n)
    cells = StageCells(begin[:, None], stop[:, None], int(model.batch.pp[i]) - k, begin == 0, end == n)
    seconds, x = price_cells(model, i, cells, recompute)
    time = np.full((k_max, n + 1, n + 1), np.inf)
    full = np.zeros((k_max, n + 1, n + 1, x.shape[1]), dtype=np.int64)
    time[k - 1, begin, end] = seconds + (model.p2p_s[i] if k_max > 1 else 0.0)
    full[k - 1, begin, end] = x
    return time, full


def _outside_s(way: Way, counts: IntArray, full: IntArray, first: bool, last: bool, host: Host | None) -> float:
    """What a stage of ``counts`` layers by class adds to a step outside the pipeline, by the evaluator."""
    problem, batch = way.model.problem, way.model.batch.take([way.row])
    pp = int(batch.pp[0])
    layers = (int(counts.sum()), *([0] * (pp - 1)))
    layout = evolve(
        laid_out(problem.arch, pp, layers),
        counts=counts[None].astype(np.float64),
        first=np.array([float(first)]),
        last=np.array([float(last)]),
        index=np.zeros(1),
        mean_counts=counts.astype(np.float64),
        fill_counts=counts.astype(np.float64),
        full_counts=full[None].astype(np.float64),
        mean_full=full.astype(np.float64),
    )
    e = evaluate(problem, batch, host, layout=layout)
    inside = {*PIPELINE_CAUSES, "straggler"}
    return float(sum(float(v[0]) for c, v in e.seconds.items() if c not in inside))


def _plan(ways: Sequence[Way], full: Sequence[IntArray], stages: Sequence[Stage], m: int, host: Host | None) -> DegreesPlan:
    """A plan of the dynamic program, by events."""
    p, n = len(stages), len(ways[0].model.prefix) - 1
    forward, backward = np.zeros(p), np.zeros(p)
    used, layers, again, held, outside = [], [], [], [], []
    for s, stage in enumerate(stages):
        way = ways[stage.submesh]
        model, i = way.model, way.row
        stop = min(stage.last + 1, n)
        x = full[stage.submesh][p - s - 1, stage.first, stage.last]
        cells = StageCells(
            np.array([[stage.first]]), np.array([[stop]]), np.array([int(model.batch.pp[i]) - (p - s)]),
            np.array([s == 0]), np.array([s == p - 1]),
        )  # fmt: skip
        counts = cells.counts(model)[0]
        first, last = float(s == 0), float(s == p - 1)
        send = float(model.p2p_s[i]) / 2 if p > 1 else 0.0
        ahead = counts @ model.forward[i] + first * model.first_forward[i] + last * model.last_forward[i]
        whole = counts @ model.time[i] + first * model.first_s[i] + last * model.last_s[i]
        forward[s], backward[s] = ahead + send, whole - ahead + x @ model.again[i] + send
        used.append(way)
        layers.append(stop - stage.first)
        again.append(tuple(int(v) for v in x))
        held.append(float(stage_bytes(model, i, cells, x[None])[0]))
        outside.append(_outside_s(way, counts, x, s == 0, s == p - 1, host))
    return DegreesPlan(
        ways=tuple(used),
        first_layers=tuple(s.first for s in stages),
        layers=tuple(layers),
        full=tuple(again),
        time_s=tuple(float(t) for t in forward + backward),
        held_bytes=tuple(held),
        micro_batches=m,
        pipeline_s=makespan(forward, backward, p, m),
        outside_s=max(outside),
        slow=max(float(w.model.slow[w.row]) for w in used),
    )
