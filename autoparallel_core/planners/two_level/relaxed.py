"""Step time of many strategies with layers cut anywhere, fractions of layers included: which strategies deserve an exact cut.

All layers are taken as the average one. A stage at position s holds as many layers as a cap τ on its time and its
memory let it, some of them recomputed; the smallest τ at which the stages together hold all layers is found by
bisection, for all strategies at once. Axis legend: S strategies, P stages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.cost.pipeline import in_flight
from autoparallel_core.planners.two_level.cells import FULL
from autoparallel_core.planners.two_level.stage_model import StageModel

Array = NDArray[np.float64]

_STEPS = 24
_PIECE = 1 << 20
"""Elements [S, P] per piece."""


def relaxed_step_s(model: StageModel) -> Array:
    """Estimated step seconds, [S]; infinite where even recomputing everything does not fit."""
    out = np.full(len(model.batch), np.inf)
    for p in np.unique(model.batch.pp):
        rows = np.flatnonzero(model.batch.pp == p)
        for start in range(0, len(rows), max(1, _PIECE // int(p))):
            piece = rows[start : start + max(1, _PIECE // int(p))]
            out[piece] = _one_depth(model.take(piece), int(p))
    return out


def _one_depth(model: StageModel, p: int) -> Array:
    """Strategies of ``p`` stages."""
    counts = model.prefix[-1].astype(np.float64)
    n_layers = counts.sum()
    by_class = (model.time, model.again, model.static, model.saved, model.dropped)
    t, r, static, saved, dropped = (x @ counts / n_layers for x in by_class)
    full = model.batch.recompute == FULL
    live = np.where(full, model.live.min(axis=1), 0.0)
    at = np.broadcast_to(np.arange(p, dtype=np.float64), (len(t), p))
    v = np.broadcast_to(model.batch.vpp[:, None].astype(np.float64), at.shape)
    m = np.broadcast_to(model.micro_batches[:, None], at.shape)
    flight = in_flight(model.problem.software.pipeline_schedule, np.full(at.shape, float(p)), v, m, at)
    fixed = np.zeros(at.shape)
    fixed[:, 0] += model.first_s
    fixed[:, -1] += model.last_s
    room = np.broadcast_to((model.budget - model.constant)[:, None], at.shape).copy()
    room -= flight * model.passing[:, None]
    room[:, 0] -= model.first_static
    room[:, -1] -= model.last_static + model.logits + flight[:, -1] * model.last_saved
    held = static[:, None] + flight * saved[:, None]
    kept = held - np.where(full, flight.T * dropped, 0.0).T
    plain = np.maximum(room, 0.0) / held
    least = np.where(full[:, None], np.maximum(room - live[:, None], 0.0) / kept, plain)
    most = np.maximum(plain, least)
    possible = most.sum(axis=1) >= n_layers
    # Seconds of recompute per layer that does not fit as it is: each frees flight·dropped bytes.
    per_layer = np.where(full, r, 0.0)[:, None] * held / np.maximum(flight * dropped[:, None], 1e-300)
    beyond = np.where(full, r * live, 0.0)[:, None] / np.maximum(flight * dropped[:, None], 1e-300)
    low = np.zeros(len(t))
    high = fixed.max(axis=1) + n_layers * (t + np.where(full, r, 0.0)) + beyond.max(axis=1)
    for _ in range(_STEPS):
        tau = (low + high) / 2
        enough = _layers(tau, fixed, t, plain, per_layer, beyond, most).sum(axis=1) >= n_layers
        low, high = np.where(enough, low, tau), np.where(enough, tau, high)
    layers = _layers(high, fixed, t, plain, per_layer, beyond, most)
    layers = layers * (n_layers / np.maximum(layers.sum(axis=1), 1e-300))[:, None]
    again = np.maximum(layers - plain, 0.0) * per_layer + np.where(layers > plain, beyond, 0.0)
    summed = n_layers * t + model.first_s + model.last_s + again.sum(axis=1)
    step = (model.spread * summed + model.repeat * high + model.micro_batches * model.p2p_s + model.rest_s) * model.slow
    return np.where(possible, step, np.inf)


def _layers(tau: Array, fixed: Array, t: Array, plain: Array, per_layer: Array, beyond: Array, most: Array) -> Array:
    """Layers that each stage holds within ``tau``, [S, P]: as they are up to ``plain``, recomputing some beyond it."""
    left = np.maximum(tau[:, None] - fixed, 0.0)
    mixed = (left - beyond + plain * per_layer) / (t[:, None] + per_layer)
    return np.minimum(np.where(left <= plain * t[:, None], left / t[:, None], np.maximum(plain, mixed)), most)
