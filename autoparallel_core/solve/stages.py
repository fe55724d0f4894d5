"""Cut a chain into pipeline stages and give each a submesh: dynamic programming under a cap on the slowest stage.

Symbols (Alpa, arXiv 2201.12023, section 5): ``T[k, i, j, m]`` is the time of one micro-batch on a stage that holds
nodes i..j on submesh m and has k stages from itself to the end, inclusive (k decides how many micro-batches it keeps
in flight); submesh m takes ``units[m]`` of the ``total`` units, a vector with one entry per kind of device; B
micro-batches. For a cap τ on every T::

    G(0, L, 0) = 0
    G(k, i, d; τ) = min over j ≥ i, m with units[m] ≤ d, T[k,i,j,m] ≤ τ of  T[k,i,j,m] + G(k−1, j+1, d − units[m]; τ)

and the step of a plan with p stages takes ``spread[p]·Σ T + repeat[p]·max T``: 1 and B−1 for 1F1B. Every unit is used.

The same recursion with max for + gives the smallest cap under which p stages exist, hence a first plan and a range of
caps that can beat it. The range is divided, best bound first: a solve at the upper end of an interval gives the least
Σ T below that cap, hence a bound for the whole interval, and plans whose own max shorten it (the ε-constraint method;
Haimes et al. 1971). Intervals that cannot beat the best plan by more than the tolerance are dropped, so that a few
solves stand for the enumeration of all distinct T.

Axis legend: K stages counted from the end, L nodes, M submeshes, R kinds of device, D unit counts (mixed radix over R).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

_AT_ONCE = 1 << 18
"""Elements up to which one step of the recursion is one array operation."""


@frozen
class Stage:
    """Nodes ``first``..``last`` (inclusive) on ``submesh``, taking ``time`` per micro-batch."""

    first: int
    last: int
    submesh: int
    time: float


@frozen
class StagePlan:
    """Stages in order, with the step time they give."""

    stages: tuple[Stage, ...]
    objective: float

    @property
    def slowest(self) -> float:
        return max(s.time for s in self.stages)

    @property
    def summed(self) -> float:
        return sum(s.time for s in self.stages)


@frozen(eq=False)
class StageProblem:
    """See the module. ``time`` is float64[K, L, L, M], infinite where a stage is impossible (and where j < i)."""

    time: Array
    units: IntArray
    """[M, R]."""
    total: IntArray
    """[R]."""
    spread: Array
    """Weight of Σ T by number of stages, [K]."""
    repeat: Array
    """Weight of max T by number of stages, [K]."""
    allowed: NDArray[np.bool_]
    """Which numbers of stages are permitted, [K]."""

    @classmethod
    def of(
        cls,
        time: ArrayLike,
        units: ArrayLike,
        total: ArrayLike,
        *,
        micro_batches: int | None = None,
        spread: ArrayLike | None = None,
        repeat: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
    ) -> StageProblem:
        """Give ``micro_batches`` (1F1B) or both weights; all numbers of stages are allowed unless ``allowed`` says which.

        Where ``allowed`` fixes the number of stages, a submesh may have no units, and R may be 0.

        Raises:
            ValueError: shapes do not fit, or a time or weight is negative or not a number.
        """
        t = np.asarray(time, dtype=np.float64)
        if t.ndim != 4 or t.shape[1] != t.shape[2]:
            raise ValueError(f"stage times must be [K, L, L, M], not {t.shape}")
        before = np.arange(t.shape[1])[:, None] > np.arange(t.shape[1])[None, :]
        t = np.where(before[None, :, :, None], np.inf, t)
        if np.isnan(t).any() or (t < 0).any():
            raise ValueError("a stage time is negative or not a number")
        k, _, _, m = t.shape
        capacity = np.atleast_1d(np.asarray(total, dtype=np.int64))
        size = np.asarray(units, dtype=np.int64)
        size = size[:, None] if size.ndim == 1 else size
        empty = allowed is None and bool(len(capacity)) and (size.sum(axis=1) == 0).any()
        if size.shape != (m, len(capacity)) or (size < 0).any() or empty:
            raise ValueError(f"submesh sizes must be [{m}, {len(capacity)}], none empty, not {size.tolist()}")
        if micro_batches is not None:
            spread, repeat = np.ones(k), np.full(k, float(micro_batches - 1))
        if spread is None or repeat is None:
            raise ValueError("either micro_batches or both weights are needed")
        a, b = np.asarray(spread, dtype=np.float64), np.asarray(repeat, dtype=np.float64)
        if a.shape != (k,) or b.shape != (k,) or (a < 0).any() or (b < 0).any():
            raise ValueError(f"weights must be {k} non-negative numbers")
        number = np.ones(k, dtype=bool) if allowed is None else np.asarray(allowed, dtype=bool)
        return cls(t, size, capacity, a, b, number)


@frozen
class StageAnswer:
    """``best`` None: no cut fits. ``plans`` are further plans met, best first, at most one per set of stages."""

    best: StagePlan | None
    plans: tuple[StagePlan, ...]
    solves: int
    """Dynamic programs run."""


def plan_stages(problem: StageProblem, *, keep: int = 16, tolerance: float = 0.0) -> StageAnswer:
    """The optimal plan, within ``tolerance`` (relative) of the optimum.

    Among the plans met on the way the ``keep`` best are returned, for another model to rank.
    """
    table = _Table(problem)
    caps = np.unique(problem.time[np.isfinite(problem.time)])
    least = table.bottleneck() if len(caps) else np.full(len(problem.spread), np.inf)
    if not np.isfinite(least).any():
        return StageAnswer(None, (), 1 if len(caps) else 0)
    search = _Search(problem, table, caps, least)
    search.visit(-1, int(np.searchsorted(caps, least.min())))
    search.visit(-1, len(caps) - 1)
    while search.heap:
        bound, low, high = heapq.heappop(search.heap)
        if bound >= search.best * (1 - tolerance):
            break
        search.visit(low, high)
    plans = sorted(search.pool.values(), key=lambda x: x.objective)[:keep]
    return StageAnswer(plans[0], tuple(plans), search.solves)


class _Search:
    """Intervals of caps (low, high], as indices into the distinct times; the max of a plan in one is at least caps[low + 1]."""

    def __init__(self, problem: StageProblem, table: _Table, caps: Array, least: Array) -> None:
        self.problem, self.table, self.caps, self.least = problem, table, caps, least
        self.best = np.inf
        self.pool: dict[tuple[tuple[int, int, int], ...], StagePlan] = {}
        self.heap: list[tuple[float, int, int]] = []
        self.solves = 1

    def visit(self, low: int, high: int) -> None:
        """Solve at the upper end, collect its plans, and divide what of the interval can still win."""
        cap = float(self.caps[high])
        sums = self.table.solve(cap)
        self.solves += 1
        worst = -np.inf
        for p in np.flatnonzero(np.isfinite(sums)):
            plan = self.table.plan(int(p) + 1, cap)
            worst = max(worst, plan.slowest)
            self.pool.setdefault(tuple((s.first, s.last, s.submesh) for s in plan.stages), plan)
            self.best = min(self.best, plan.objective)
        # At the cap ``worst`` every number of stages has the same least sum: only smaller caps are left.
        top = min(int(np.searchsorted(self.caps, worst)), high) - 1
        weights = self.problem.repeat
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(np.isfinite(sums), (self.best - self.problem.spread * sums) / weights, -np.inf)
        highest = np.where(weights > 0, room, np.where(room > 0, np.inf, -np.inf)).max()
        top = min(top, int(np.searchsorted(self.caps, highest, side="right")) - 1)
        low = max(low, int(np.searchsorted(self.caps, self.least.min())) - 1)
        if top <= low:
            return
        middle = int(np.searchsorted(self.caps, (self.caps[low + 1] + self.caps[top]) / 2))
        for a, b in ((middle, top), (low, min(middle, top))):
            if b > a:
                floor = self.problem.spread * sums + weights * np.maximum(self.caps[a + 1], self.least)
                heapq.heappush(self.heap, (float(floor[np.isfinite(sums)].min()), a, b))


class _Table:
    """The dynamic program; ``solve`` fills G, ``plan`` walks it. Unit counts are one mixed-radix number."""

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        radix = problem.total + 1
        self.weights = np.cumprod(np.concatenate([[1], radix])).astype(np.int64)[:-1]
        self.size = int(np.prod(radix))
        counts = (np.arange(self.size)[:, None] // self.weights) % radix
        # Per submesh: which unit counts can give it its units, and what is left of them.
        self.holds = [np.flatnonzero((counts >= u).all(axis=1)) for u in problem.units]
        self.shift = problem.units @ self.weights
        k, n, _, _ = problem.time.shape
        self.g = np.full((k + 1, n + 1, self.size), np.inf)
        self.g[0, n, 0] = 0.0
        self.usable = [[m for m in range(len(problem.units)) if np.isfinite(problem.time[s, :, :, m]).any()] for s in range(k)]

    def solve(self, cap: float) -> Array:
        """Least Σ T under the cap for 1..K stages that cover all nodes and use all units, [K]; keeps G for ``plan``."""
        return self._recursion(self.g, np.add, cap)

    def bottleneck(self) -> Array:
        """Least max T for 1..K stages, [K]."""
        g = np.full_like(self.g, np.inf)
        g[0, -1, 0] = 0.0
        return self._recursion(g, np.maximum, np.inf)

    def _recursion(self, g: Array, combine: np.ufunc, cap: float) -> Array:
        time = self.problem.time
        k_max, n, _, _ = time.shape
        for k in range(1, k_max + 1):
            g[k] = np.inf
            before = g[k - 1]
            reach = np.isfinite(before).any(axis=1)
            for m in self.usable[k - 1]:
                to = self.holds[m]
                rest = before[:, to - self.shift[m]]
                capped = np.where(time[k - 1, :, :, m] <= cap, time[k - 1, :, :, m], np.inf)
                if n * n * len(to) <= _AT_ONCE:
                    g[k, :n][:, to] = np.minimum(g[k, :n][:, to], combine(capped[:, :, None], rest[None, 1:]).min(axis=1))
                    continue
                for i in range(n - 1, -1, -1):
                    ends = np.flatnonzero(np.isfinite(capped[i, i:]) & reach[i + 1 :])
                    if len(ends):
                        here = combine(capped[i, i + ends][:, None], rest[i + 1 + ends]).min(axis=0)
                        g[k, i, to] = np.minimum(g[k, i, to], here)
        return np.where(self.problem.allowed, g[1:, 0, self.size - 1], np.inf)

    def plan(self, n_stages: int, cap: float) -> StagePlan:
        """The plan behind a finite sum of the last ``solve``."""
        time, g = self.problem.time, self.g
        n = time.shape[1]
        i, d, stages = 0, self.size - 1, []
        for k in range(n_stages, 0, -1):
            found: tuple[float, float, int, int] | None = None
            for m in self.usable[k - 1]:
                if not np.any(self.holds[m] == d):
                    continue
                t = time[k - 1, i, i:, m]
                total = np.where(t <= cap, t, np.inf) + g[k - 1, i + 1 : n + 1, d - self.shift[m]]
                least = float(total.min())
                if np.isfinite(least) and (found is None or least < found[0]):
                    j = int(total.argmin())
                    found = least, float(t[j]), i + j, m
            assert found is not None, "a finite sum has a plan behind it"
            _, t_stage, last, m = found
            stages.append(Stage(i, last, m, t_stage))
            i, d = last + 1, d - int(self.shift[m])
        return self._priced(tuple(stages))

    def _priced(self, stages: Sequence[Stage]) -> StagePlan:
        p = len(stages) - 1
        summed, slowest = sum(s.time for s in stages), max(s.time for s in stages)
        return StagePlan(tuple(stages), float(self.problem.spread[p] * summed + self.problem.repeat[p] * slowest))
