"""Products of small tables: the rows of one, each with the values of one more column that go with it.

Axis legend: R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Table = dict[str, IntArray]
"""int64[R] by column name."""


def unit() -> Table:
    """One row: tp 1."""
    return {"tp": np.ones(1, dtype=np.int64)}


def rows_where(t: Table, keep: Any) -> Table:
    """Rows by mask, index or slice."""
    return {c: v[keep] for c, v in t.items()}


def cross(
    t: Table, name: str, values: Sequence[int], keep: Callable[[Table], Any], *, fallback: int | None = None
) -> Table:  # fmt: skip
    """Every row with every value, less those that ``keep`` drops; rows left with none take ``fallback``, if given."""
    v = np.unique(np.asarray(values, dtype=np.int64))
    n = len(t["tp"])
    out = {c: np.repeat(a, len(v)) for c, a in t.items() if c != name}
    out[name] = np.tile(v, n)
    mask = np.asarray(keep(out), dtype=bool)
    kept = rows_where(out, mask)
    if fallback is None:
        return kept
    bare = ~mask.reshape(n, len(v)).any(axis=1)
    lost = rows_where(t, bare) | {name: np.full(int(bare.sum()), fallback, dtype=np.int64)}
    return {c: np.concatenate([kept[c], lost[c]]) for c in kept}


def cross_by(t: Table, name: str, key: str, values: Callable[[int], Sequence[int]]) -> Table:
    """Every row with the values that its ``key`` column allows."""
    keys, inverse = np.unique(t[key], return_inverse=True)
    lists = [np.asarray(values(int(k)), dtype=np.int64) for k in keys]
    lengths = np.array([len(v) for v in lists], dtype=np.int64)
    flat = np.concatenate([*lists, np.zeros(0, dtype=np.int64)])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    per_row = lengths[inverse]
    within = np.arange(int(per_row.sum())) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    return {c: np.repeat(a, per_row) for c, a in t.items()} | {name: flat[np.repeat(starts[inverse], per_row) + within]}
