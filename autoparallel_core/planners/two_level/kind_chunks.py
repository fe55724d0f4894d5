"""Interleaved pipelines over several kinds of GPU: chunks are levelled by what each takes on its rank's kind.

The kinds lie one after another along the ranks, in every order. As on one kind (:mod:`interleaved`) the slowest chunk sets
the pace, so the smallest cap under which p·v chunks hold all layers is sought, and chunks are filled by the speed of their
kind below it. Axis legend: K kinds, L layers, P ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.planners.two_level.cells import FULL, Granularity, StageCells, price_cells
from autoparallel_core.planners.two_level.kind_cuts import KindCut
from autoparallel_core.planners.two_level.simulated import chunk_seconds
from autoparallel_core.planners.two_level.stage_model import StageModel

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
_STEPS = 60
_ROUNDING = 1e-12


def interleaved_kind_cuts(
    models: Sequence[StageModel], i: int, stages: Sequence[int], *, recompute: Granularity, below_s: float = np.inf
) -> tuple[KindCut, ...]:  # fmt: skip
    """Cuts of strategy ``i`` with several chunks per rank on ``stages`` of each kind, best first."""
    v, full = int(models[0].batch.vpp[i]), models[0].batch.recompute[i] == FULL
    out = []
    for order in permutations(range(len(models))):
        kinds = np.repeat(order, [stages[k] for k in order])
        of_chunk = np.tile(kinds, v)
        for again in (0.0, 1.0) if full else (0.0,):
            before = np.stack([m.prefix @ (m.time[i] + again * m.again[i]) for m in models])
            ends = float(models[of_chunk[0]].first_s[i]), float(models[of_chunk[-1]].last_s[i])
            cut = _cut(models, i, level_over_kinds(before, of_chunk, *ends), kinds, recompute)
            if cut.step_s < below_s and cut not in out:
                out.append(cut)
    return tuple(sorted(out, key=lambda c: c.step_s))


def level_over_kinds(before: Array, of_chunk: IntArray, first_s: float, last_s: float) -> tuple[int, ...]:
    """Layers of each chunk so that the slowest is as fast as can be; ``before``: the time in front of each layer, [K, L + 1]."""
    n, chunks = before.shape[1] - 1, len(of_chunk)
    own = np.zeros(chunks)
    own[0] += first_s
    own[-1] += last_s
    low, high = 0.0, float(before[:, -1].max()) + first_s + last_s
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _starts(before, of_chunk, own, middle)[0] == 0 else (middle, high)
    high *= 1 + _ROUNDING
    starts = _starts(before, of_chunk, own, high)
    rate = 1 / before[of_chunk, -1]
    out, begin = [], 0
    for c in range(chunks):
        times = before[of_chunk[c]]
        most = int(np.searchsorted(times, times[begin] + high - own[c], side="right")) - 1
        share = round((n - begin) * float(rate[c] / rate[c:].sum()))
        end = n if c == chunks - 1 else min(max(begin + share, int(starts[c + 1])), most)
        out.append(end - begin)
        begin = end
    return tuple(out)


def _starts(before: Array, of_chunk: IntArray, own: Array, cap: float) -> IntArray:
    """Smallest layer at which each chunk may begin under the cap so that it and those behind it hold the rest."""
    n = before.shape[1] - 1
    starts, end = np.full(len(of_chunk), n, dtype=np.int64), n
    for c in range(len(of_chunk) - 1, -1, -1):
        if own[c] > cap:
            return np.full(len(of_chunk), n + 1, dtype=np.int64)
        times = before[of_chunk[c]]
        end = min(int(np.searchsorted(times, times[end] + own[c] - cap, side="left")), end)
        starts[c] = end
    return starts


def _cut(models: Sequence[StageModel], i: int, split: tuple[int, ...], kinds: IntArray, recompute: Granularity) -> KindCut:
    """The split with the recompute that fits on every rank, and its step."""
    p = len(kinds)
    ends = np.cumsum(split)
    begin, end = (np.reshape(a, (-1, p)).T for a in (ends - np.array(split), ends))
    at, full, fits = np.arange(p), np.zeros((p, models[0].time.shape[1]), dtype=np.int64), True
    for k, m in enumerate(models):
        rows = np.flatnonzero(kinds == k)
        cells = StageCells(begin[rows], end[rows], at[rows], at[rows] == 0, at[rows] == p - 1)
        seconds, full[rows] = price_cells(m, i, cells, recompute)
        fits = fits and bool(np.isfinite(seconds).all())
    chosen = tuple(int(k) for k in kinds), tuple(tuple(int(v) for v in row) for row in full)
    if not fits:
        return KindCut(split, *chosen, np.inf)
    chunk = np.zeros(len(split))
    for k, m in enumerate(models):
        mine = np.tile(kinds, len(split) // p) == k
        chunk = np.where(mine, np.add(*chunk_seconds(m, i, split, full.astype(np.float64))), chunk)
    rows_s = chunk.reshape(-1, p)
    # The first row fills the pipeline, then the busiest rank sets the pace at best; the events have the last word.
    count, fill = float(models[0].micro_batches[i]), (p - 1) * float(rows_s[0].mean())
    outside = max(float((count * x.p2p_s[i] + x.rest_s[i]) * x.slow[i]) for x in models)
    slow = max(float(x.slow[i]) for x in models)
    return KindCut(split, *chosen, (count * float(rows_s.sum(axis=0).max()) + fill) * slow + outside)
