"""Amounts by cause as table cells: small causes folded into one, and every row of cells summing to its printed total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoparallel_core.report import format as fmt

OTHER = "other"
_LAST = ("context", "allocator_slack", "missing_cache")
"""Causes above what a strategy allocates; they follow the others."""
SMALL_BYTES = 0.05e9
"""A cause that is smaller in every row gets no column of its own."""
_ABSORBS = (OTHER, "allocator_slack")
"""Whose cells take what rounding leaves, before the largest does: nobody knows them to a tenth."""


def memory_cells(rows: Sequence[Mapping[str, float]], totals: Sequence[float]) -> tuple[list[str], list[list[str]]]:
    """Causes, in order of appearance, and their cells in tenths of a gigabyte.

    Args:
        rows: bytes by cause.
        totals: bytes in all; what the causes leave of them is ``other``.

    Returns:
        The causes that get a column, and per row one cell each; the cells of a row sum to its total's own tenths.
    """
    complete = [{**row, OTHER: row.get(OTHER, 0.0) + total - sum(row.values())} for row, total in zip(rows, totals, strict=True)]
    causes, amounts = folded(complete)
    return causes, [[fmt.tenths(v) for v in summing(row, total)] for row, total in zip(amounts, totals, strict=True)]


def folded(rows: Sequence[Mapping[str, float]]) -> tuple[list[str], list[dict[str, float]]]:
    """Causes that are not small everywhere, and the rows with all others summed under ``other``."""
    most: dict[str, float] = {}
    for row in rows:
        for cause, amount in row.items():
            most[cause] = max(most.get(cause, 0.0), abs(amount))
    kept = [cause for cause, amount in most.items() if amount >= SMALL_BYTES and cause != OTHER]
    kept.sort(key=lambda c: _LAST.index(c) if c in _LAST else -1)
    out = []
    for row in rows:
        rest = sum(v for k, v in row.items() if k not in kept)
        out.append({k: row.get(k, 0.0) for k in kept} | {OTHER: rest})
    if all(abs(row[OTHER]) < SMALL_BYTES for row in out):  # not even together a tenth; the rounding of the others hides it
        out = [{k: v for k, v in row.items() if k != OTHER} for row in out]
        return kept, out
    return [*kept, OTHER], out


def summing(row: Mapping[str, float], total: float) -> list[float]:
    """The amounts rounded to tenths of a gigabyte, in bytes, such that they sum to the rounded total."""
    tenths = {cause: _tenths(v) for cause, v in row.items()}
    left = _tenths(total) - sum(tenths.values())
    largest = sorted(tenths, key=lambda c: -tenths[c])
    for cause in (*(c for c in _ABSORBS if c in tenths), *largest):
        if left and tenths[cause] + left >= 0:
            tenths[cause] += left
            break
    return [n * 1e8 for n in tenths.values()]


def _tenths(n_bytes: float) -> int:
    """Tenths of a gigabyte as they are printed: 0.95 GB, which no binary fraction is, prints as 0.9."""
    return round(10.0 * round(n_bytes / 1e9, 1))
