"""How many members of each class take which mode: items that are alike, so only counts matter.

::

    minimise    Σ x[c, r]·cost[c, r]
    subject to  Σ_r x[c, r] = n[c],   Σ x[c, r]·memory[c, r] ≤ budget,   x ≥ 0 integer

:func:`count_front` answers every budget of one problem with any number of modes. :func:`fewest_upgrades` answers
many problems with two modes at once. Axis legend: C classes, R modes, N points, S problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray

from autoparallel_core.solve.chain import nondominated

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]


@frozen(eq=False)
class CountFront:
    """Non-dominated (memory, cost), memory ascending, with the counts behind each point."""

    memory: Array
    cost: Array
    counts: IntArray
    """[N, C, R]."""

    def within(self, budget: float) -> int | None:
        """The cheapest point whose memory is at most ``budget``, None when there is none."""
        n = int(np.searchsorted(self.memory, budget, side="right"))
        return n - 1 if n else None


def count_front(n: ArrayLike, cost: ArrayLike, memory: ArrayLike) -> CountFront:
    """Every non-dominated way to give ``n[c]`` members of each class one of R modes each.

    An infinite cost forbids a mode. Raises ValueError on shapes and negative counts.
    """
    size, c, m = np.asarray(n, dtype=np.int64), np.asarray(cost, dtype=np.float64), np.asarray(memory, dtype=np.float64)
    if c.ndim != 2 or c.shape != m.shape or size.shape != (len(c),) or (size < 0).any():
        raise ValueError(f"counts {size.shape}, costs {c.shape} and memory {m.shape} do not fit, or a count is negative")
    modes = c.shape[1]
    total_m, total_c = np.zeros(1), np.zeros(1)
    chosen = np.zeros((1, 0, modes), dtype=np.int64)
    for i, members in enumerate(size):
        allowed = np.flatnonzero(np.isfinite(c[i]))
        x = np.zeros((0, modes), dtype=np.int64)
        if len(allowed):
            parts = _compositions(int(members), len(allowed))
            x = np.zeros((len(parts), modes), dtype=np.int64)
            x[:, allowed] = parts
        elif not members:
            x = np.zeros((1, modes), dtype=np.int64)
        finite = np.where(np.isfinite(c[i]), c[i], 0.0)
        own_m, own_c = x.astype(np.float64) @ m[i], x.astype(np.float64) @ finite
        keep = nondominated(own_m, own_c)
        x, own_m, own_c = x[keep], own_m[keep], own_c[keep]
        sum_m, sum_c = (total_m[:, None] + own_m).ravel(), (total_c[:, None] + own_c).ravel()
        keep = nondominated(sum_m, sum_c)
        before, own = np.divmod(keep, max(len(x), 1))
        total_m, total_c = sum_m[keep], sum_c[keep]
        chosen = np.concatenate([chosen[before], x[own][:, None, :]], axis=1)
    return CountFront(total_m, total_c, chosen)


def _compositions(total: int, parts: int) -> IntArray:
    """All non-negative integer vectors of ``parts`` entries that sum to ``total``."""
    if parts == 1:
        return np.array([[total]], dtype=np.int64)
    rows = [
        np.concatenate([np.full((len(rest), 1), first), rest], axis=1)
        for first in range(total + 1)
        for rest in (_compositions(total - first, parts - 1),)
    ]
    return np.concatenate(rows)


def fewest_upgrades(n: IntArray, saved: Array, extra: Array, deficit: Array) -> tuple[Array, IntArray]:
    """Upgrade members of classes until they have saved enough, as cheaply as possible.

    Args:
        n: members by class, [S, C].
        saved: memory that one upgrade saves, ≥ 0, [S, C].
        extra: what it costs, ≥ 0, [S, C].
        deficit: memory to be saved, [S]; zero or less needs nothing.

    Returns:
        Total extra cost [S] (infinite where even all upgrades save too little) and upgrades by class [S, C].

    All classes but the largest are enumerated; of the largest as few as suffice are taken, which is exact since every
    upgrade costs something or nothing, never less.
    """
    n_problems, n_classes = n.shape
    best = np.full(n_problems, np.inf)
    x = np.zeros((n_problems, n_classes), dtype=np.int64)
    if not n_problems:
        return best, x
    order = np.argsort(-n.max(axis=0), kind="stable")
    big, small = int(order[0]), [int(c) for c in order[1:] if n[:, c].any()]
    with np.errstate(divide="ignore", invalid="ignore"):
        for combo in _counts(n, small):
            fits = np.ones(n_problems, dtype=bool)
            left, cost = deficit.copy(), np.zeros(n_problems)
            for c, k in zip(small, combo, strict=True):
                fits &= k <= n[:, c]
                left -= k * saved[:, c]
                cost += k * extra[:, c]
            scale = np.maximum(np.abs(deficit), saved[:, big])
            need = np.where(left > scale * 1e-12, np.ceil(left / saved[:, big] - 1e-9), 0.0)
            fits &= need <= n[:, big]
            need = np.where(fits, need, 0.0)
            cost += need * extra[:, big]
            won = fits & (cost < best)
            best = np.where(won, cost, best)
            x[won, big] = need[won].astype(np.int64)
            for c, k in zip(small, combo, strict=True):
                x[won, c] = k
    return best, x


def _counts(n: IntArray, classes: list[int]) -> Iterator[tuple[int, ...]]:
    """Every combination of upgrades of the given classes, fewest first in each."""
    yield from product(*(range(int(n[:, c].max()) + 1) for c in classes))
