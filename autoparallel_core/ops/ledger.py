"""A record of how operators' times were come by, kept while one strategy is priced for an explanation.

Nothing is kept unless :func:`recording` is active, so that pricing batches costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from attrs import define, field

MARKS = ("measured", "interpolated", "extrapolated")
"""By the numbers that tables of measured points return: at a point, between points, outside of their range."""


@define
class Ledger:
    """Seconds by kind of operator and mark."""

    seconds: dict[str, dict[str, float]] = field(factory=dict)

    def add(self, kind: str, seconds: Any, marks: Any) -> None:
        """Add times (any shape) with a mark each."""
        times, how = np.broadcast_arrays(np.asarray(seconds, dtype=np.float64), np.asarray(marks))
        into = self.seconds.setdefault(kind, dict.fromkeys(MARKS, 0.0))
        for number, mark in enumerate(MARKS):
            into[mark] += float(times[how == number].sum())

    def shares(self, kind: str) -> dict[str, float]:
        """Share of a kind's time by mark; empty when nothing of it came from measured points."""
        found = self.seconds.get(kind, {})
        total = sum(found.values())
        return {mark: s / total for mark, s in found.items() if s} if total else {}


_active: ContextVar[Ledger | None] = ContextVar("ledger", default=None)


@contextmanager
def recording() -> Iterator[Ledger]:
    """Keep a ledger of all operators that are priced inside."""
    ledger = Ledger()
    token = _active.set(ledger)
    try:
        yield ledger
    finally:
        _active.reset(token)


def note(kind: str, seconds: Any, marks: Any) -> None:
    """Write into the active ledger, if there is one."""
    ledger = _active.get()
    if ledger is not None:
        ledger.add(kind, seconds, marks)
