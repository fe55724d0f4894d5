"""Meshes of three and four dimensions: exact programs over parts of the mesh, repeated until none improves.

A program over all dimensions has too many options (125 and 625 per operator). *Starts* tie mesh dimensions together, so
that the mesh becomes one of two dimensions, and solve that exactly, for every way of cutting the dimensions in two: a
start is never worse than the best plan in which the tied dimensions are used alike, whichever role they play.
*Refinement* then frees two dimensions at a time, with the rules on the others as they are, and solves that exactly.
The bound adds up what each operator takes at its best, without any communication: it is valid and weak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from attrs import define, field

from autoparallel_core.errors import Infeasible
from autoparallel_pytorch.exact import Exact
from autoparallel_pytorch.formulate import Formulation, Narrow
from autoparallel_pytorch.graph import Graph
from autoparallel_pytorch.recompute import States
from autoparallel_pytorch.search import Choice, Key, Objective, Point

Formulate = Callable[[Narrow | None, Sequence[tuple[int, int]]], Formulation]

_SWEEPS = 3


@define(eq=False)
class Parts:
    """See :class:`~.search.Priced`."""

    formulate: Formulate
    """(narrow, tied) → the problem."""
    states_of: Callable[[Formulation], States]
    unconnected: Callable[[], Formulation]
    graph: Graph
    objective: Objective
    n_dims: int
    time_limit_s: float
    _starts: list[Exact] | None = field(default=None)
    _alone: Formulation | None = field(default=None)

    def solve(self, share: float, price: float, start: Point | None) -> Point:
        best = start if start is not None else self._start(share, price)
        value = np.inf if start is not None else self._value(best, share, price)
        for _ in range(_SWEEPS):
            before = value
            for free in combinations(range(self.n_dims), 2):
                found = self._exact(self._around(best.choice, free)).solve(share, price, best)
                if self._value(found, share, price) < value * (1.0 - 1e-9):
                    best, value = found, self._value(found, share, price)
            if value >= before * (1.0 - 1e-6):
                break
        return Point(share, price, best.choice, best.seconds, best.kept_bytes, self._bound(share), exact=False)

    def _start(self, share: float, price: float) -> Point:
        """The best of the meshes of two dimensions that this one becomes when neighbours are tied."""
        if self._starts is None:
            cuts = range(1, self.n_dims)
            self._starts = [self._exact(self.formulate(None, _tied(c, self.n_dims))) for c in cuts]
        found = []
        for problem in self._starts:
            try:
                found.append(problem.solve(share, price, None))
            except Infeasible:  # a pin may tell tied dimensions apart
                continue
        if not found:
            raise Infeasible("no combination of placements satisfies the pins on a mesh of this many dimensions")
        return min(found, key=lambda p: self._value(p, share, price))

    def _exact(self, form: Formulation) -> Exact:
        return Exact(form, self.graph, self.states_of(form), self.objective, self.time_limit_s)

    def _around(self, choice: Choice, free: Sequence[int]) -> Formulation:
        def narrow(key: Key, m: int) -> Sequence[int] | None:
            return None if m in free else (choice.picks[key][m],)

        return self.formulate(narrow, ())

    def _value(self, point: Point, share: float, price: float) -> float:
        prices = self.objective.prices(share)
        return sum(w * point.seconds[k] for k, w in prices.items()) + price * point.kept_bytes

    def _bound(self, share: float) -> float:
        if self._alone is None:
            self._alone = self.unconnected()
        prices = self.objective.prices(share)
        return sum(
            float(np.min(sum((prices[k] * c for k, c in s.cost.items()), np.zeros(len(s.picks))))) for s in self._alone.slots
        )


def _tied(cut: int, n: int) -> list[tuple[int, int]]:
    """The first ``cut`` dimensions go together, and so do the others."""
    return [(i, i + 1) for i in range(n - 1) if i + 1 != cut]
