"""Cuts over stages of several kinds of GPU: relaxation for many strategies, the exact dynamic program for one.

Axis legend: S strategies, K kinds, N cells, P stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.planners.two_level.cells import FULL, Granularity, StageCells, price_cells
from autoparallel_core.planners.two_level.cut import interval_cells, slowest_allowed
from autoparallel_core.planners.two_level.stage_model import StageModel
from autoparallel_core.solve.stages import StageProblem, plan_stages

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
_STEPS = 24


@frozen
class KindCut:
    """Layers of every virtual stage; kind and recomputed layers by class of every rank's stage."""

    layers: tuple[int, ...]
    kinds: tuple[int, ...]
    full: tuple[tuple[int, ...], ...]
    step_s: float
    """By the stage models."""


def relaxed_kinds_s(models: Sequence[StageModel], stages: IntArray) -> Array:
    """Estimated step, [S]: average layers, cut anywhere, on ``stages`` [S, K] of each kind; infinite where they do not fit."""
    first = models[0]
    counts = first.prefix[-1].astype(np.float64)
    n_layers, p = counts.sum(), first.batch.pp.astype(np.float64)
    flight = np.minimum(first.micro_batches, (p + 1) / 2)
    full = first.batch.recompute == FULL
    rate, room = [], []
    for m in models:
        t, again, static, saved, dropped = (x @ counts / n_layers for x in (m.time, m.again, m.static, m.saved, m.dropped))
        free = np.maximum(m.budget - m.constant - (m.first_static + m.last_static + m.logits) / p, 0.0)
        plain = free / (static + flight * saved)
        most = np.where(full, free / (static + flight * (saved - dropped)), plain)
        # A stage that holds more than fit as they are recomputes some: seconds per layer on average at the most.
        need = np.clip((n_layers / p - plain) / np.maximum(n_layers / p, 1e-300), 0.0, 1.0)
        rate.append(t + np.where(full, again * need, 0.0))
        room.append(most)
    ends = sum((m.first_s + m.last_s for m in models), np.zeros(len(p))) / len(models)
    low, high = np.zeros(len(p)), np.max(rate, axis=0) * n_layers + ends
    for _ in range(_STEPS):
        tau = (low + high) / 2
        held = sum((s * np.minimum(tau / r, c) for s, r, c in zip(stages.T, rate, room, strict=True)), np.zeros(len(p)))
        enough = held >= n_layers + ends / np.min(rate, axis=0)
        low, high = np.where(enough, low, tau), np.where(enough, tau, high)
    possible = sum((s * c for s, c in zip(stages.T, room, strict=True)), np.zeros(len(p))) >= n_layers
    rest, p2p = np.max([m.rest_s for m in models], axis=0), np.max([m.p2p_s for m in models], axis=0)
    step = (first.spread * high * p + first.repeat * high + first.micro_batches * p2p + rest) * first.slow
    return np.where(possible, step, np.inf)


def best_kind_cuts(
    models: Sequence[StageModel], i: int, stages: Sequence[int], *, recompute: Granularity, below_s: float = np.inf, keep: int = 3
) -> tuple[KindCut, ...]:  # fmt: skip
    """The best cuts of strategy ``i`` over ``stages`` of each kind, best first.

    Kinds are submeshes of the stage dynamic program; all but the last are counted, so that the last fills what is left.
    """
    p, n_layers = sum(stages), len(models[0].prefix) - 1
    fastest = min(models, key=lambda m: float(m.prefix[-1] @ m.time[i]))
    most = slowest_allowed(fastest, i, below_s)
    cells = interval_cells(fastest, i, p, most)
    if not len(cells.position):
        return ()
    begin, end = cells.begin[:, 0], np.where(cells.last, n_layers, cells.end[:, 0] - 1)
    time = np.full((p, n_layers + 1, n_layers + 1, len(models)), np.inf)
    upgrades = []
    for k, m in enumerate(models):
        priced, x = price_cells(m, i, cells, recompute)
        time[p - 1 - cells.position, begin, end, k] = np.where(priced <= most, priced, np.inf)
        upgrades.append(x)
    units = np.eye(len(models), dtype=np.int64)[:, :-1]
    weights = (models[0].spread[i], models[0].repeat[i])
    problem = StageProblem.of(
        time, units, stages[:-1], spread=np.full(p, weights[0]), repeat=np.full(p, weights[1]), allowed=np.arange(1, p + 1) == p
    )
    out = []
    for plan in plan_stages(problem, keep=keep).plans:
        step = _step_s(models, i, plan.summed, plan.slowest)
        if step < below_s:
            held = tuple(min(s.last + 1, n_layers) - s.first for s in plan.stages)
            rows = [cells.row(at, s.first, held[at]) for at, s in enumerate(plan.stages)]
            full = tuple(tuple(int(v) for v in upgrades[s.submesh][r]) for s, r in zip(plan.stages, rows, strict=True))
            out.append(KindCut(held, tuple(s.submesh for s in plan.stages), full, step))
    return tuple(out)


def even_kind_cuts(models: Sequence[StageModel], i: int, stages: Sequence[int], split: tuple[int, ...]) -> tuple[KindCut, ...]:
    """The usual spread with the kinds one after another, in every order; all layers recompute where the strategy does."""
    ends = np.cumsum(split)
    at = np.arange(len(split))
    cells = StageCells((ends - np.array(split))[:, None], ends[:, None], at, at == 0, at == len(split) - 1)
    prices = [price_cells(m, i, cells, int(max(split))) for m in models]
    out = []
    for order in permutations(range(len(models))):
        kinds = np.repeat(order, [stages[k] for k in order])
        seconds = np.array([prices[k][0][s] for s, k in enumerate(kinds)])
        full = tuple(tuple(int(v) for v in prices[k][1][s]) for s, k in enumerate(kinds))
        if np.isfinite(seconds).all():
            step = _step_s(models, i, float(seconds.sum()), float(seconds.max()))
            out.append(KindCut(split, tuple(int(k) for k in kinds), full, step))
    return tuple(out)


def _step_s(models: Sequence[StageModel], i: int, summed: float, slowest: float) -> float:
    return float(max(float(m.step_s(i, summed, slowest)) for m in models))
