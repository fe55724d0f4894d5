"""Cuts of interleaved pipelines: each rank holds several chunks, far apart in the chain.

In the steady state a rank alternates between its chunks and waits for every other rank's, so that the slowest of all
chunks sets the pace, not the slowest rank: a cut whose ranks are level but whose chunks are not stalls (simulation:
:mod:`autoparallel_core.solve.schedule`). So the chunks themselves are levelled, exactly: the smallest cap under which
p·v chunks hold all layers, with the embedding on the first and the head on the last. Which layers recompute follows
afterwards, so cuts for times with and without recompute are offered, beside the usual spread.

Axis legend: L layers, P ranks.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.cost.stages import ends_in_layers, split_layers
from autoparallel_core.planners.two_level.cells import FULL, Granularity, StageCells, price_cells
from autoparallel_core.planners.two_level.cut import Cut
from autoparallel_core.planners.two_level.stage_model import StageModel

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]


def best_interleaved(model: StageModel, i: int, *, recompute: Granularity = "layer", below_s: float = np.inf) -> tuple[Cut, ...]:
    """The cuts whose step is below ``below_s``, best first."""
    p, v = int(model.batch.pp[i]), int(model.batch.vpp[i])
    arch, soft = model.problem.arch, model.problem.software
    splits = {split_layers(arch.num_layers, p * v, ends=ends_in_layers(arch), embedding_as_layer=soft.embedding_as_layer)}
    layer = model.time[i] if model.batch.recompute[i] != FULL else model.time[i] + model.again[i]
    for times in (model.time[i], layer):
        splits.add(level_chunks(np.diff(model.prefix @ times), p * v, float(model.first_s[i]), float(model.last_s[i])))
    cuts = [_priced(model, i, split, recompute) for split in sorted(splits)]
    return tuple(sorted((c for c in cuts if c.step_s < below_s), key=lambda c: c.step_s))


def level_chunks(times: Array, n_chunks: int, first_s: float, last_s: float) -> tuple[int, ...]:
    """Layers of each chunk so that the slowest is as fast as can be; ``times`` are those of the layers."""
    return _levelled(tuple(float(t) for t in times), n_chunks, first_s, last_s)


@lru_cache(maxsize=4096)
def _levelled(layer_s: tuple[float, ...], n_chunks: int, first_s: float, last_s: float) -> tuple[int, ...]:
    """Strategies that differ in what does not change a layer's time share the answer."""
    times = np.array(layer_s)
    before = np.concatenate([[0.0], np.cumsum(times)])
    sums = before[None, :] - before[:, None]
    caps = np.unique(np.concatenate([sums[np.triu_indices(len(before))], sums[0] + first_s, sums[:, -1] + last_s]))
    low, high = 0, len(caps) - 1
    while low < high:
        middle = (low + high) // 2
        feasible = _reach(before, float(caps[middle]), n_chunks, first_s, last_s)[0] == 0
        low, high = (low, middle) if feasible else (middle + 1, high)
    cap = float(caps[low])
    starts = _reach(before, cap, n_chunks, first_s, last_s)
    out, begin, n = [], 0, len(times)
    for c in range(n_chunks):
        own = (first_s if c == 0 else 0.0) + (last_s if c == n_chunks - 1 else 0.0)
        most = int(np.searchsorted(before, before[begin] + _above(cap) - own, side="right")) - 1
        # As many as an even share of what is left, but enough that the chunks after it can hold the rest.
        share = -(-(n - begin) // (n_chunks - c))
        end = n if c == n_chunks - 1 else min(max(begin + share, int(starts[c + 1])), most)
        out.append(end - begin)
        begin = end
    return tuple(out)


def _reach(before: Array, cap: float, n_chunks: int, first_s: float, last_s: float) -> IntArray:
    """Smallest layer at which chunks c, c + 1, … may begin under the cap and still hold the rest; [chunks], 0 is feasible."""
    starts = np.zeros(n_chunks, dtype=np.int64)
    end = len(before) - 1
    for c in range(n_chunks - 1, -1, -1):
        own = (first_s if c == 0 else 0.0) + (last_s if c == n_chunks - 1 else 0.0)
        if own > _above(cap):
            return np.full(n_chunks, len(before), dtype=np.int64)
        end = int(np.searchsorted(before, before[end] + own - _above(cap), side="left"))
        starts[c] = end
    return starts


def _above(cap: float) -> float:
    return cap * (1 + 1e-12)


def _priced(model: StageModel, i: int, split: tuple[int, ...], recompute: Granularity) -> Cut:
    """The step of a split, with the recompute that fits."""
    p, v = int(model.batch.pp[i]), int(model.batch.vpp[i])
    ends = np.cumsum(split)
    begin = ends - np.array(split)
    at = np.arange(p)
    cells = StageCells(begin.reshape(v, p).T, ends.reshape(v, p).T, at, at == 0, at == p - 1)
    seconds, x = price_cells(model, i, cells, recompute)
    full = tuple(tuple(int(c) for c in row) for row in x)
    if not np.isfinite(seconds).all():
        return Cut(split, full, np.inf)
    counts = (model.prefix[ends] - model.prefix[begin]).astype(np.float64)
    of_stage = np.maximum(counts.reshape(v, p, -1).sum(axis=0), 1.0)
    chunk = counts @ model.time[i] + (counts * np.tile(x / of_stage, (v, 1))) @ model.again[i]
    chunk[0] += model.first_s[i]
    chunk[-1] += model.last_s[i]
    rows = chunk.reshape(v, p)
    share = rows[0].sum() * v / chunk.sum()  # what fills the pipeline is the first row
    return Cut(split, full, float(model.step_s(i, chunk.sum() * share, rows.max(axis=1).sum())))
