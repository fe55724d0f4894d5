"""Seconds and recompute of pipeline stages under their memory: the inner optimum of the two levels.

For a stage (one or several runs of layers, at a position of the pipeline) the cheapest recompute that fits is found
exactly, in the way the engine can set it:

* ``layer``: any layers; how many of each class is :func:`autoparallel_core.solve.counts.fewest_upgrades`;
* ``stage``: the first n layers of every run, n chosen for each stage;
* an integer: the first so many layers of every run, the same on all stages.

Axis legend: N cells, V runs of layers (virtual stages), C layer classes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.planners.two_level.stage_model import StageModel
from autoparallel_core.solve.counts import fewest_upgrades
from autoparallel_core.spec.strategy import RECOMPUTE

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
FULL = RECOMPUTE.index("full")
Granularity = Literal["layer", "stage"] | int


@frozen(eq=False)
class StageCells:
    """Stages to be priced."""

    begin: IntArray
    """First layer of each run, [N, V]."""
    end: IntArray
    """One past the last, [N, V]."""
    position: IntArray
    """In the pipeline, [N]."""
    first: NDArray[np.bool_]
    """Holds the embedding, [N]."""
    last: NDArray[np.bool_]
    """Holds the head, [N]."""

    def row(self, position: int, begin: int, layers: int) -> int:
        """The cell of so many layers from ``begin`` at a position, for cells of one run."""
        found = (self.position == position) & (self.begin[:, 0] == begin) & (self.end[:, 0] == begin + layers)
        return int(np.flatnonzero(found)[0])

    def counts(self, model: StageModel, most: int | None = None) -> IntArray:
        """Layers by class, [N, C]; of every run the first ``most``."""
        end = self.end if most is None else np.minimum(self.begin + most, self.end)
        return np.asarray((model.prefix[end] - model.prefix[self.begin]).sum(axis=1))


def price_cells(model: StageModel, i: int, cells: StageCells, recompute: Granularity) -> tuple[Array, IntArray]:
    """Seconds of strategy ``i`` on each cell (infinite where it does not fit), and its layers under full recompute, [N, C]."""
    n = cells.counts(model)
    seconds = n @ model.time[i] + cells.first * model.first_s[i] + cells.last * model.last_s[i]
    kept = model.flight(i, cells.position) * model.stays(n)
    deficit = _plain_bytes(model, i, cells, n) - model.budget[i]
    if model.batch.recompute[i] != FULL:
        return np.where(deficit <= 0, seconds, np.inf), np.zeros_like(n)
    if recompute == "layer":
        extra, x = _any_layers(model, i, n, deficit, kept)
    else:
        extra, x = _first_layers(model, i, cells, deficit, kept, recompute)
    return seconds + extra, x


def _plain_bytes(model: StageModel, i: int, cells: StageCells, n: IntArray) -> Array:
    """Bytes of stages of ``n`` layers by class without full recompute, [N]."""
    flight = model.flight(i, cells.position)
    held = n @ model.static[i] + model.constant[i] + cells.first * model.first_static[i]
    held = held + cells.last * (model.last_static[i] + model.logits[i] + flight * model.last_saved[i])
    return np.asarray(held + flight * (model.stays(n) * (n @ model.saved[i]) + model.passing[i]))


def stage_bytes(model: StageModel, i: int, cells: StageCells, x: IntArray) -> Array:
    """Bytes that stages allocate with ``x`` layers by class, [N, C], under full recompute."""
    n = cells.counts(model)
    freed = model.flight(i, cells.position) * model.stays(n) * (x @ model.dropped[i])
    live = np.where(x > 0, model.live[i], 0.0).max(axis=1)
    return np.asarray(_plain_bytes(model, i, cells, n) - freed + live)


def _any_layers(model: StageModel, i: int, n: IntArray, deficit: Array, kept: Array) -> tuple[Array, IntArray]:
    """Least seconds that free ``deficit``; ``kept`` micro-batches are freed at once, the largest class recomputed is live."""
    best, x = np.where(deficit <= 0, 0.0, np.inf), np.zeros_like(n)
    todo = np.flatnonzero(deficit > 0)
    saved = kept[todo, None] * model.dropped[i]
    again = np.broadcast_to(model.again[i], saved.shape)
    for live in np.unique(model.live[i]):
        allowed = np.where(model.live[i] <= live, n[todo], 0)
        cost, upgrades = fewest_upgrades(allowed, saved, again, deficit[todo] + live)
        won = cost < best[todo]
        best[todo] = np.where(won, cost, best[todo])
        x[todo[won]] = upgrades[won]
    return best, x


def _first_layers(
    model: StageModel, i: int, cells: StageCells, deficit: Array, kept: Array, recompute: Granularity
) -> tuple[Array, IntArray]:
    """The fewest first layers of every run that free ``deficit``, or the number given."""
    extra = np.full(len(deficit), np.inf)
    x = np.zeros((len(deficit), model.time.shape[1]), dtype=np.int64)
    longest = int((cells.end - cells.begin).max(initial=0))
    for k in range(longest + 1) if isinstance(recompute, str) else (recompute,):
        todo = np.flatnonzero(np.isinf(extra))
        part = StageCells(cells.begin[todo], cells.end[todo], cells.position[todo], cells.first[todo], cells.last[todo])
        counts = part.counts(model, k)
        freed = kept[todo] * (counts @ model.dropped[i]) - np.where(counts > 0, model.live[i], 0.0).max(axis=1)
        good = deficit[todo] <= freed
        x[todo[good]] = counts[good]
        extra[todo[good]] = counts[good] @ model.again[i]
        if good.all():
            break
    return extra, x
