"""One option per node of a graph, with costs on nodes and edges and memory limits: the assignment problem of Alpa
(arXiv 2201.12023, section 4.1), as a linear program first and an integer program only where that is fractional.

::

    minimise    Σ_v Σ_k s[v,k]·cost[v][k]  +  Σ_(u,v) Σ_kl e[u,v,k,l]·table[u,v][k,l]
    subject to  Σ_k s[v,k] = 1                                      one option per node
                Σ_l e[u,v,k,l] = s[u,k],  Σ_k e[u,v,k,l] = s[v,l]   an edge follows its ends
                Σ_v Σ_k s[v,k]·memory[v][k] ≤ limit                 per memory row (a live point)
                s binary, e ≥ 0

The equalities make the relaxation integral on trees without a binding memory row. Tied nodes share their leader's
variables. Arrays go to HiGHS (Huangfu & Hall, Math. Prog. Comp. 10, 2018) directly. Axis legend: V nodes, K options.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

from autoparallel_core.solve.highs import Model, Outcome, solve_model

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
Status = Literal["optimal", "feasible", "infeasible", "no solution in time"]

_INTEGRAL = 1e-6
_SLACK = 1e-9


@frozen(eq=False)
class MemoryRow:
    """``Σ_v memory[v][choice[v]] ≤ limit`` over the nodes named."""

    memory: Mapping[int, Array]
    limit: float


@frozen(eq=False)
class Assignment:
    """A problem. Infinite costs forbid an option or a pair.

    ``follow`` ties a node to a leader: ``follow[v] = (leader, options)`` gives v the option ``options[k]`` when the
    leader takes k; −1 forbids k. A leader follows nobody.
    """

    cost: tuple[Array, ...]
    edges: Mapping[tuple[int, int], Array] = field(factory=dict)
    rows: tuple[MemoryRow, ...] = ()
    follow: Mapping[int, tuple[int, IntArray]] = field(factory=dict)

    @classmethod
    def of(
        cls,
        cost: Sequence[ArrayLike],
        edges: Mapping[tuple[int, int], ArrayLike] | None = None,
        rows: Sequence[tuple[Mapping[int, ArrayLike], float]] = (),
        follow: Mapping[int, tuple[int, ArrayLike]] | None = None,
    ) -> Assignment:
        """From anything array-like. Raises ValueError when shapes or node numbers do not fit."""
        problem = cls(
            tuple(np.asarray(c, dtype=np.float64) for c in cost),
            {e: np.asarray(t, dtype=np.float64) for e, t in (edges or {}).items()},
            tuple(MemoryRow({v: np.asarray(m, dtype=np.float64) for v, m in r.items()}, float(b)) for r, b in rows),
            {v: (u, np.asarray(k, dtype=np.int64)) for v, (u, k) in (follow or {}).items()},
        )
        problem._check()
        return problem

    def _check(self) -> None:
        sizes = [len(c) for c in self.cost]
        for v, c in enumerate(self.cost):
            if c.ndim != 1 or not len(c) or np.isnan(c).any():
                raise ValueError(f"node {v}: costs must be a vector of numbers, not of shape {c.shape}")
        for (u, v), t in self.edges.items():
            if u == v or not (0 <= u < len(sizes) and 0 <= v < len(sizes)) or t.shape != (sizes[u], sizes[v]):
                raise ValueError(f"edge {u}–{v}: table of shape {t.shape} does not fit its nodes")
        for i, row in enumerate(self.rows):
            for v, m in row.memory.items():
                if not 0 <= v < len(sizes) or m.shape != (sizes[v],) or not np.isfinite(m).all():
                    raise ValueError(f"memory row {i}: node {v} needs {sizes[v]} finite numbers")
        for v, (u, options) in self.follow.items():
            if u == v or u in self.follow or options.shape != (sizes[u],) or options.max() >= sizes[v]:
                raise ValueError(f"node {v} cannot follow node {u} with {options.shape} options")

    def price(self, choice: Sequence[int]) -> float:
        """Total cost of a choice, infinite where it is forbidden."""
        total = sum(float(c[k]) for c, k in zip(self.cost, choice, strict=True))
        return total + sum(float(t[choice[u], choice[v]]) for (u, v), t in self.edges.items())

    def permits(self, choice: Sequence[int]) -> bool:
        """Whether ties, memory rows and forbidden options are respected."""
        tied = all(options[choice[u]] == choice[v] for v, (u, options) in self.follow.items())
        used = (sum(float(m[choice[v]]) for v, m in row.memory.items()) - row.limit for row in self.rows)
        limits = (_SLACK * max(1.0, abs(row.limit)) for row in self.rows)
        return tied and np.isfinite(self.price(choice)) and all(u <= s for u, s in zip(used, limits, strict=True))


@frozen
class AssignmentResult:
    """What the solver found and how sure it is."""

    status: Status
    choice: tuple[int, ...] | None
    cost: float
    """Of the choice; infinite when there is none."""
    bound: float
    """No choice costs less."""
    gap: float
    """(cost − bound) / |cost|; 0 when optimal, infinite without a choice."""
    method: Literal["presolve", "lp", "mip", "incumbent"]
    """What settled it: the relaxation was integral, or the integer program, or only the choice given."""
    seconds: float


def solve_assignment(
    problem: Assignment, *, time_limit_s: float = 60.0, gap: float = 0.0, incumbent: Sequence[int] | None = None
) -> AssignmentResult:
    """Solve to ``gap`` (relative) or until the time is up.

    Args:
        problem: the problem.
        time_limit_s: wall-clock seconds for relaxation and integer program together.
        gap: relative gap at which the integer program may stop.
        incumbent: a choice to start from; returned when nothing better is found in time.

    Raises:
        ValueError: the incumbent is not permitted.
    """
    started = time.perf_counter()
    start = None if incumbent is None else tuple(int(k) for k in incumbent)
    if start is not None and not problem.permits(start):
        raise ValueError("the incumbent breaks a memory row, a tie or takes a forbidden option")
    compiled = _compile(problem)
    if compiled is None:
        return _result(problem, "infeasible", None, np.inf, "presolve", started)
    model, names = compiled
    outcome = solve_model(model, time_limit_s=time_limit_s)
    if outcome.status == "infeasible":
        return _result(problem, "infeasible", None, np.inf, "lp", started)
    bound = outcome.bound
    if outcome.status == "optimal":
        assert outcome.values is not None
        values = outcome.values[: model.n_integer]
        rounded = names.choice(values)
        if np.abs(values - np.rint(values)).max(initial=0.0) <= _INTEGRAL and problem.permits(rounded):
            return _result(problem, "optimal", rounded, problem.price(rounded), "lp", started)
        start = _better(problem, start, rounded)
    left = time_limit_s - (time.perf_counter() - started)
    if left > 0:
        given = None if start is None else names.values(start, model)
        outcome = solve_model(model, integer=True, time_limit_s=left, gap=gap, start=given)
        if outcome.status == "infeasible":
            return _result(problem, "infeasible", None, np.inf, "mip", started)
        bound = max(bound, outcome.bound)
    return _settle(problem, names, outcome, start, bound, gap, started)


def _settle(
    problem: Assignment, names: _Names, outcome: Outcome, start: tuple[int, ...] | None, bound: float, gap: float, started: float
) -> AssignmentResult:
    found = None if outcome.values is None else names.choice(outcome.values)
    best = _better(problem, start, found)
    method: Literal["mip", "incumbent"] = "incumbent" if best is None or best != found else "mip"
    if best is None:
        return _result(problem, "no solution in time", None, bound, method, started)
    cost = problem.price(best)
    proven = outcome.status == "optimal" or cost - bound <= max(gap, _SLACK) * max(abs(cost), _SLACK)
    status: Status = "optimal" if proven and gap == 0 else "feasible"
    return _result(problem, status, best, cost if status == "optimal" else bound, method, started)


def _better(problem: Assignment, a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> tuple[int, ...] | None:
    options = [x for x in (a, b) if x is not None and problem.permits(x)]
    return min(options, key=problem.price, default=None)


def _result(
    problem: Assignment, status: Status, choice: tuple[int, ...] | None, bound: float,
    method: Literal["presolve", "lp", "mip", "incumbent"], started: float,
) -> AssignmentResult:  # fmt: skip
    cost = np.inf if choice is None else problem.price(choice)
    bound = min(bound, cost)
    gap = np.inf if choice is None else 0.0 if cost == bound else (cost - bound) / max(abs(cost), 1e-300)
    return AssignmentResult(status, choice, float(cost), float(bound), float(gap), method, time.perf_counter() - started)


# --- from graph to arrays -------------------------------------------------------------------------------------------


@frozen(eq=False)
class _Names:
    """Where each node's choice is found among the variables."""

    leaders: tuple[int, ...]
    first: Mapping[int, int]
    """Leader → its first variable."""
    sizes: Mapping[int, int]
    follow: Mapping[int, tuple[int, IntArray]]
    n_nodes: int
    edges: tuple[tuple[int, int, int], ...]
    """(leader, leader, first variable)."""

    def choice(self, values: Array) -> tuple[int, ...]:
        out = [0] * self.n_nodes
        for u in self.leaders:
            out[u] = int(np.argmax(values[self.first[u] : self.first[u] + self.sizes[u]]))
        for v, (u, options) in self.follow.items():
            out[v] = int(options[out[u]])
        return tuple(out)

    def values(self, choice: Sequence[int], model: Model) -> Array:
        x = np.zeros(len(model.cost))
        for u in self.leaders:
            x[self.first[u] + choice[u]] = 1.0
        for u, v, first in self.edges:
            x[first + choice[u] * self.sizes[v] + choice[v]] = 1.0
        return x


def _compile(problem: Assignment) -> tuple[Model, _Names] | None:
    """The arrays; None when a leader has no permitted option."""
    lead = {v: (v, np.arange(len(c))) for v, c in enumerate(problem.cost)} | dict(problem.follow)
    cost = {v: np.array(problem.cost[v]) for v in range(len(problem.cost)) if v not in problem.follow}
    for v, (u, options) in problem.follow.items():
        cost[u] = cost[u] + np.where(options < 0, np.inf, problem.cost[v][options])
    tables: dict[tuple[int, int], Array] = {}
    for (a, b), t in problem.edges.items():
        (u, ku), (v, kv) = lead[a], lead[b]
        table = np.where((ku < 0)[:, None] | (kv < 0)[None, :], np.inf, t[np.ix_(ku, kv)])
        if u == v:
            cost[u] = cost[u] + np.diag(table)
        elif (v, u) in tables:
            tables[v, u] = tables[v, u] + table.T
        else:
            tables[u, v] = tables.get((u, v), 0.0) + table
    if any(not np.isfinite(c).any() for c in cost.values()):
        return None
    _fold_separable(cost, tables)
    leaders = tuple(sorted(cost))
    sizes = {u: len(cost[u]) for u in leaders}
    first, at = {}, 0
    for u in leaders:
        first[u] = at
        at += sizes[u]
    n_integer = at
    edges = []
    for (u, v), t in tables.items():
        edges.append((u, v, at))
        at += t.size
    flat = [cost[u] for u in leaders] + [t.ravel() for t in tables.values()]
    names = _Names(leaders, first, sizes, dict(problem.follow), len(problem.cost), tuple(edges))
    rows = [{first[u] + k: 1.0 for k in range(sizes[u])} for u in leaders]
    return _model(np.concatenate(flat), n_integer, names, rows, _memory_rows(problem, lead, first)), names


def _fold_separable(cost: dict[int, Array], tables: dict[tuple[int, int], Array]) -> None:
    """Move what of a table is a sum a[k] + b[l] to its nodes; tables that are nothing else need no variables."""
    for (u, v), t in list(tables.items()):
        if not np.isfinite(t).all():
            continue
        by_row = t[:, 0]
        by_column = (t - by_row[:, None])[0]
        rest = t - by_row[:, None] - by_column[None, :]
        if np.abs(rest).max() <= _SLACK * max(1e-300, np.abs(t).max()):
            cost[u], cost[v] = cost[u] + by_row, cost[v] + by_column
            del tables[u, v]


def _memory_rows(
    problem: Assignment, lead: Mapping[int, tuple[int, IntArray]], first: Mapping[int, int]
) -> list[tuple[dict[int, float], float]]:
    """Memory rows over the leaders' variables, scaled to a limit of 1 in size."""
    out = []
    for row in problem.rows:
        total: dict[int, float] = {}
        for v, m in row.memory.items():
            u, options = lead[v]
            for k, option in enumerate(options):
                if option >= 0 and m[option]:
                    total[first[u] + k] = total.get(first[u] + k, 0.0) + float(m[option])
        scale = abs(row.limit) or max((abs(x) for x in total.values()), default=1.0)
        out.append(({i: x / scale for i, x in total.items()}, row.limit / scale))
    return out


def _model(
    cost: Array,
    n_integer: int,
    names: _Names,
    ones: Sequence[Mapping[int, float]],
    memory: Sequence[tuple[Mapping[int, float], float]],
) -> Model:
    """Row-wise matrix: one option per node, edges follow their ends, memory rows."""
    index: list[IntArray] = []
    value: list[Array] = []
    lower: list[float] = []
    upper: list[float] = []

    def add(columns: IntArray, values: Array, low: float, high: float) -> None:
        index.append(columns)
        value.append(values)
        lower.append(low)
        upper.append(high)

    for row in ones:
        add(np.fromiter(row, dtype=np.int64), np.ones(len(row)), 1.0, 1.0)
    for u, v, first in names.edges:
        a, b = names.sizes[u], names.sizes[v]
        block = first + np.arange(a * b, dtype=np.int64).reshape(a, b)
        for k in range(a):
            add(np.append(block[k], names.first[u] + k), np.append(np.ones(b), -1.0), 0.0, 0.0)
        for j in range(b):
            add(np.append(block[:, j], names.first[v] + j), np.append(np.ones(a), -1.0), 0.0, 0.0)
    for row, limit in memory:
        add(np.fromiter(row, dtype=np.int64), np.fromiter(row.values(), dtype=np.float64), -np.inf, limit)
    permitted = np.isfinite(cost)
    return Model(
        cost=np.where(permitted, cost, 0.0),
        upper=np.where(permitted, 1.0, 0.0),
        n_integer=n_integer,
        start=np.concatenate([[0], np.cumsum([len(i) for i in index])]).astype(np.int64),
        index=np.concatenate(index),
        value=np.concatenate(value),
        row_lower=np.array(lower),
        row_upper=np.array(upper),
    )
