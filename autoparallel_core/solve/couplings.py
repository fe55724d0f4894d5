"""Assignment problems whose tables have few distinct entries, kept small: one option per node, costs on nodes and on pairs.

Where many options of a node look alike to a neighbour, the table between the two is a small *core* that both index. A
*factor* scales it by groups of options, and forbids pairs of groups where it is infinite.
Axis legend: K options of a node; G, H rows and columns of a core; A, B groups of options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from autoparallel_core.solve.assignment import Assignment

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]


@frozen(eq=False)
class Coupling:
    """The cost of option k here and option l there: ``factor[row_groups[k], column_groups[l]] · core[rows[k], columns[l]]``."""

    core: Array
    """[G, H]; shared between couplings, never written to. Infinite entries are forbidden."""
    rows: IntArray
    """[K]."""
    columns: IntArray
    """[K there]."""
    factor: Array = field(factory=lambda: np.ones((1, 1)))
    """[A, B], positive; infinite: forbidden."""
    row_groups: IntArray = field()
    column_groups: IntArray = field()

    @row_groups.default
    def _one_row_group(self) -> IntArray:
        return np.zeros(len(self.rows), dtype=np.int64)

    @column_groups.default
    def _one_column_group(self) -> IntArray:
        return np.zeros(len(self.columns), dtype=np.int64)

    @classmethod
    def of(cls, table: Array) -> Coupling:
        """A table as its own core."""
        return cls(table, np.arange(table.shape[0]), np.arange(table.shape[1]))

    def table(self, rows: IntArray | slice = slice(None), columns: IntArray | slice = slice(None)) -> Array:
        """The costs of some options here and there."""
        factor = self.factor[np.ix_(self.row_groups[rows], self.column_groups[columns])]
        core = self.core[np.ix_(self.rows[rows], self.columns[columns])]
        return np.where(np.isinf(factor), np.inf, np.where(np.isinf(factor), 1.0, factor) * core)

    def __getitem__(self, index: tuple[Any, Any]) -> Any:
        """As the whole table would answer: ``[k, l]``, ``[k, :]``, ``[:, l]``."""
        k, there = index
        a, b, g, h = self.row_groups[k], self.column_groups[there], self.rows[k], self.columns[there]
        factor, core = self.factor[a, b], self.core[g, h]
        if np.ndim(factor) == 0:
            return float(factor * core) if np.isfinite(factor) else np.inf
        return np.where(np.isinf(factor), np.inf, np.where(np.isinf(factor), 1.0, factor) * core)

    def scaled(self, by: float) -> Coupling:
        """Every cost times a positive number."""
        return Coupling(self.core, self.rows, self.columns, self.factor * by, self.row_groups, self.column_groups)

    def turned(self) -> Coupling:
        """Seen from the other node."""
        return Coupling(self.core.T, self.columns, self.rows, self.factor.T, self.column_groups, self.row_groups)

    def plus(self, other: Coupling) -> Coupling:
        """The sum, over the pairs of rows, and of columns, that occur. Both have one group here and there."""
        assert self.factor.shape == other.factor.shape == (1, 1), "sums are made before groups are"
        rows, row = np.unique(np.stack((self.rows, other.rows)), axis=1, return_inverse=True)
        columns, column = np.unique(np.stack((self.columns, other.columns)), axis=1, return_inverse=True)
        core = self.factor[0, 0] * self.core[np.ix_(rows[0], columns[0])]
        core = core + other.factor[0, 0] * other.core[np.ix_(rows[1], columns[1])]
        return Coupling(core, row.ravel(), column.ravel())

    def grouped(self, factor: Array) -> Coupling:
        """Every option once per group, group by group, with its costs times ``factor`` [A, B]."""
        a, b = factor.shape
        return Coupling(
            self.core, np.tile(self.rows, a), np.tile(self.columns, b), factor * self.factor[0, 0],
            np.repeat(np.arange(a), len(self.rows)), np.repeat(np.arange(b), len(self.columns)),
        )  # fmt: skip


@frozen(eq=False)
class Coupled:
    """A problem. ``couplings`` holds (node, another node, costs); two nodes may have several, which add up."""

    cost: tuple[Array, ...]
    couplings: tuple[tuple[int, int, Coupling], ...]

    def price(self, choice: Sequence[int]) -> float:
        """Total cost of a choice, infinite where it is forbidden."""
        total = sum(float(c[k]) for c, k in zip(self.cost, choice, strict=True))
        return total + sum(float(c[choice[u], choice[v]]) for u, v, c in self.couplings)

    def restricted(self, options: Sequence[IntArray]) -> Assignment:
        """The problem over some of the options of each node, with whole tables."""
        edges: dict[tuple[int, int], Array] = {}
        for u, v, c in self.couplings:
            table = c.table(options[u], options[v])
            if (v, u) in edges:
                edges[v, u] = edges[v, u] + table.T
            else:
                edges[u, v] = edges.get((u, v), 0.0) + table
        return Assignment(tuple(c[o] for c, o in zip(self.cost, options, strict=True)), edges, (), {})

    def size(self, options: Sequence[IntArray]) -> int:
        """Entries of all tables of :meth:`restricted`."""
        return sum(len(options[u]) * len(options[v]) for u, v, _ in self.couplings)
