"""Make an assignment problem smaller without losing its optimum, before any linear program sees it.

Two exact steps, repeated until neither applies:

*Dead ends* (Goldstein, Biophysical Journal 66, 1994): option k of a node is dropped when another option j is at least as
good whatever the neighbours choose, ``cost[k] − cost[j] + Σ_edges min_l (table[k,l] − table[j,l]) ≥ 0``, with no more
memory in any row.

*Elimination* of nodes with at most two neighbours and no memory (series-parallel reduction; Bertelè & Brioschi, 1972):
such a node's best option is a function of its neighbours', which becomes a table between them,
``table'[a,c] = min_b (table[a,b] + cost[b] + table[b,c])``.

Axis legend: K options of a node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from autoparallel_core.solve.assignment import Assignment, MemoryRow

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

_LARGEST_TABLE = 1 << 22
"""Entries of the intermediate table of one elimination; larger ones are left to the solver."""


@frozen(eq=False)
class Reduced:
    """A smaller problem and the way back."""

    problem: Assignment
    nodes: tuple[int, ...]
    """Which node of the original each node is."""
    kept: tuple[IntArray, ...]
    """Which options of the original each of its options is."""
    n_nodes: int
    steps: tuple[_Step, ...]

    def expand(self, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice of the original problem, of the same cost, from one of the smaller."""
        out = [-1] * self.n_nodes
        for v, k, options in zip(self.nodes, choice, self.kept, strict=True):
            out[v] = int(options[k])
        for step in reversed(self.steps):
            total = np.array(step.cost)
            for u, table in step.tables:
                total = total + table[int(np.flatnonzero(step.options[u] == out[u])[0])]
            out[step.node] = int(step.own[int(np.argmin(total))])
        return tuple(out)


@frozen(eq=False)
class _Step:
    """A node that was eliminated: its costs and tables ``[neighbour's options, own options]`` at that time."""

    node: int
    cost: Array
    own: IntArray
    tables: tuple[tuple[int, Array], ...]
    options: dict[int, IntArray]


def reduce_assignment(problem: Assignment, *, rounds: int = 20) -> Reduced | None:
    """A smaller problem with the same optimum; None when a node is left without a permitted option.

    Raises:
        ValueError: the problem has tied nodes; tie them by making them one node.
    """
    if problem.follow:
        raise ValueError("tied nodes cannot be reduced; make them one node")
    state = _State.of(problem)
    for _ in range(rounds):
        changed = False
        for v in list(state.cost):
            if v in state.cost:
                changed |= state.prune(v)
                if not len(state.cost[v]):
                    return None
        changed |= state.eliminate_all()
        if not changed:
            break
    return state.result(len(problem.cost))


@define(eq=False)
class _State:
    cost: dict[int, Array]
    own: dict[int, IntArray]
    tables: dict[int, dict[int, Array]]
    """``tables[v][u]`` is [K_u, K_v]; both directions are kept."""
    memory: list[dict[int, Array]]
    limits: list[float]
    steps: list[_Step] = field(factory=list)

    @classmethod
    def of(cls, problem: Assignment) -> _State:
        cost = {v: np.array(c) for v, c in enumerate(problem.cost)}
        tables: dict[int, dict[int, Array]] = {v: {} for v in cost}
        state = cls(
            cost, {v: np.arange(len(c)) for v, c in cost.items()}, tables,
            [{v: np.array(m) for v, m in r.memory.items()} for r in problem.rows], [r.limit for r in problem.rows],
        )  # fmt: skip
        for (u, v), t in problem.edges.items():
            state.add(u, v, np.array(t))
        return state

    def add(self, u: int, v: int, table: Array) -> None:
        """A table [K_u, K_v]; what of it depends on one end only moves into that end's costs."""
        old = self.tables[v].get(u)
        table = table if old is None else old + table
        if np.isfinite(table).all():
            base = table[:, :1]
            rest = table - base
            if np.abs(rest - rest[:1]).max(initial=0.0) <= 1e-12 * max(1e-300, np.abs(table).max(initial=0.0)):
                self.cost[u] = self.cost[u] + base[:, 0]
                self.cost[v] = self.cost[v] + rest[0]
                self.tables[v].pop(u, None)
                self.tables[u].pop(v, None)
                return
        self.tables[v][u], self.tables[u][v] = table, table.T

    def prune(self, v: int) -> bool:
        """Drop forbidden options and dead ends of a node."""
        cost = self.cost[v]
        alive = np.isfinite(cost)
        for t in self.tables[v].values():
            alive &= np.isfinite(t).any(axis=0)
        if not alive.all():
            self.keep(v, np.flatnonzero(alive))
            self.prune(v)
            return True
        n = len(cost)
        if n < 2:
            return False
        gain = cost[:, None] - cost[None, :]  # [k, j]: what taking k costs more than j, at least
        for t in self.tables[v].values():
            gain += _least_difference(t)
        for row in self.memory:
            m = row.get(v)
            if m is not None:
                gain = np.where(m[None, :] <= m[:, None], gain, -np.inf)
        np.fill_diagonal(gain, -np.inf)
        dead = np.zeros(n, dtype=bool)
        for k in np.argsort(-gain.max(axis=1)):
            if gain[k].max() < 0:
                break
            if (gain[k][~dead] >= 0).any():
                dead[k] = True
        if not dead.any():
            return False
        self.keep(v, np.flatnonzero(~dead))
        return True

    def keep(self, v: int, index: IntArray) -> None:
        self.cost[v], self.own[v] = self.cost[v][index], self.own[v][index]
        for u, t in list(self.tables[v].items()):
            self.tables[v][u] = t[:, index]
            self.tables[u][v] = self.tables[v][u].T
        for row in self.memory:
            if v in row:
                row[v] = row[v][index]

    def eliminate_all(self) -> bool:
        busy = {v for row in self.memory for v, m in row.items() if (m != m[:1]).any()}
        queue = [v for v in self.cost if v not in busy and len(self.tables[v]) <= 2]
        changed = False
        while queue:
            v = queue.pop()
            if v not in self.cost or len(self.tables[v]) > 2:
                continue
            neighbours = list(self.tables[v])
            if np.prod([len(self.cost[u]) for u in (*neighbours, v)], dtype=float) > _LARGEST_TABLE:
                continue
            self.eliminate(v, neighbours)
            changed = True
            queue += [u for u in neighbours if u not in busy and len(self.tables[u]) <= 2]
        return changed

    def eliminate(self, v: int, neighbours: Sequence[int]) -> None:
        cost = self.cost.pop(v)
        own = self.own.pop(v)
        tables = self.tables.pop(v)
        for i, row in enumerate(self.memory):
            if v in row:  # the same for every option
                self.limits[i] -= float(row.pop(v)[0])
        self.steps.append(_Step(v, cost, own, tuple(tables.items()), {u: self.own[u] for u in neighbours}))
        for u in neighbours:
            del self.tables[u][v]
        if not neighbours:
            return
        if len(neighbours) == 1:
            (u,) = neighbours
            self.cost[u] = self.cost[u] + (tables[u] + cost[None, :]).min(axis=1)
            return
        a, c = neighbours
        self.add(a, c, ((tables[a] + cost[None, :])[:, None, :] + tables[c][None, :, :]).min(axis=2))

    def result(self, n_nodes: int) -> Reduced:
        nodes = tuple(sorted(self.cost))
        number = {v: i for i, v in enumerate(nodes)}
        edges = {(number[u], number[v]): t for v in nodes for u, t in self.tables[v].items() if u < v}
        rows = tuple(
            MemoryRow({number[v]: m for v, m in row.items()}, limit) for row, limit in zip(self.memory, self.limits, strict=True)
        )
        problem = Assignment(tuple(self.cost[v] for v in nodes), edges, rows, {})
        # A step's neighbours may have lost options since: their tables still index the options of that time.
        return Reduced(problem, nodes, tuple(self.own[v] for v in nodes), n_nodes, tuple(self.steps))


def _least_difference(table: Array) -> Array:
    """``min_l (table[l, k] − table[l, j])`` for all k, j, where neither is forbidden or only k's is."""
    with np.errstate(invalid="ignore"):
        difference = table[:, :, None] - table[:, None, :]
    both = np.isinf(table)[:, :, None] & np.isinf(table)[:, None, :]
    return np.asarray(np.where(both, np.inf, difference).min(axis=0))
