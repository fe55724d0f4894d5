"""The best cut of one strategy's layers into stages, with the layers that each stage recomputes.

The chain is the decoder layers and, as its last node, the head (with the loss and the layers for multi-token
prediction), which may be a stage of its own; the embedding goes with the first layer. For every interval and every
position in the pipeline the cheapest recompute that fits the stage's memory is found exactly
(:mod:`autoparallel_core.planners.two_level.cells`); then the stage dynamic program chooses the cuts.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autoparallel_core.planners.two_level.cells import Granularity, StageCells, price_cells
from autoparallel_core.planners.two_level.stage_model import StageModel
from autoparallel_core.solve.stages import StageProblem, plan_stages


@frozen
class Cut:
    """A layout of one strategy, as :func:`autoparallel_core.cost.stages.laid_out` takes it."""

    layers: tuple[int, ...]
    """Decoder layers of every virtual stage, in order."""
    full: tuple[tuple[int, ...], ...]
    """Layers under full recompute by stage and class."""
    step_s: float
    """By the stage model."""


def best_cuts(
    model: StageModel, i: int, *, recompute: Granularity = "layer", below_s: float = np.inf, keep: int = 4
) -> tuple[Cut, ...]:
    """The best cuts of strategy ``i`` without interleaving, best first; only those whose step is below ``below_s``."""
    p, n_layers = int(model.batch.pp[i]), len(model.prefix) - 1
    if p == 1:
        return _single(model, i, recompute, below_s)
    most = slowest_allowed(model, i, below_s)
    cells = interval_cells(model, i, p, most)
    if not len(cells.position):
        return ()
    priced, x = price_cells(model, i, cells, recompute)
    begin, end = cells.begin[:, 0], np.where(cells.last, n_layers, cells.end[:, 0] - 1)
    time = np.full((p, n_layers + 1, n_layers + 1, 1), np.inf)
    time[p - 1 - cells.position, begin, end, 0] = np.where(priced <= most, priced, np.inf)
    problem = StageProblem.of(
        time,
        np.ones((1, 0)),
        [],
        spread=np.full(p, model.spread[i]),
        repeat=np.full(p, model.repeat[i]),
        allowed=np.arange(1, p + 1) == p,
    )
    out = []
    for plan in plan_stages(problem, keep=keep).plans:
        step = float(model.step_s(i, plan.summed, plan.slowest))
        if step < below_s:
            held = tuple(min(s.last + 1, n_layers) - s.first for s in plan.stages)
            rows = [cells.row(at, s.first, held[at]) for at, s in enumerate(plan.stages)]
            full = tuple(tuple(int(v) for v in x[r]) for r in rows)
            out.append(Cut(held, full, step))
    return tuple(out)


def interval_cells(model: StageModel, i: int, p: int, most: float) -> StageCells:
    """Every interval at every position where it can stand, unless it takes more than ``most`` even without recompute.

    The head is a node behind the last layer: its cells have ``last`` set, and may hold no layer.
    """
    n_layers = len(model.prefix) - 1
    begin, end = np.triu_indices(n_layers + 1)
    stop = np.minimum(end + 1, n_layers)
    base = (model.prefix[stop] - model.prefix[begin]) @ model.time[i] + (begin == 0) * model.first_s[i]
    quick = base + (end == n_layers) * model.last_s[i] <= most
    begin, end, stop = begin[quick], end[quick], stop[quick]
    index, position = [], []
    for s in range(p):
        left = p - 1 - s
        ends_right = ((begin == 0) == (s == 0)) & ((end == n_layers) == (left == 0))
        here = np.flatnonzero(ends_right & (begin >= s) & (end <= n_layers - left))
        index.append(here)
        position.append(np.full(len(here), s))
    at = np.concatenate(index)
    return StageCells(begin[at, None], stop[at, None], np.concatenate(position), begin[at] == 0, end[at] == n_layers)


def slowest_allowed(model: StageModel, i: int, below_s: float) -> float:
    """Slowest stage with which the step can still be below ``below_s``: all work without recompute is the least sum."""
    if not np.isfinite(below_s):
        return np.inf
    work = float(model.prefix[-1] @ model.time[i] + model.first_s[i] + model.last_s[i])
    pipeline = below_s / float(model.slow[i]) - float(model.rest_s[i] + model.micro_batches[i] * model.p2p_s[i])
    left, repeat = pipeline - float(model.spread[i]) * work, float(model.repeat[i])
    return left / repeat if repeat else np.inf * np.sign(left)


def _single(model: StageModel, i: int, recompute: Granularity, below_s: float) -> tuple[Cut, ...]:
    """No pipeline: only recompute is to be chosen."""
    zero, yes = np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool)
    n_layers = len(model.prefix) - 1
    cells = StageCells(zero[:, None], zero[:, None] + n_layers, zero, yes, yes)
    seconds, x = price_cells(model, i, cells, recompute)
    step = float(model.step_s(i, seconds[0], seconds[0]))
    return (Cut((n_layers,), (tuple(int(v) for v in x[0]),), step),) if step < below_s else ()
