"""Exact choice of one option per node of a chain, with costs on nodes and edges and one additive budget.

Forward dynamic programming over non-dominated points::

    F[v](b) = nondominated { (m + memory[v][b], t + transition[v-1][a, b] + cost[v][b]) : (m, t) in F[v-1](a), all a }

The front of the whole chain answers every budget at once. For one budget, points that cannot lead to the optimum
are cut by Lagrangian bounds (Fisher, Management Science 27, 1981): with a price λ per unit of memory the rest of the
chain costs at least L_λ − λ·(budget − m), and every evaluated λ also gives a feasible choice to beat.

Axis legend: V nodes, K options of a node, N points of a front.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

ROUNDING = 1e-12
"""Relative difference below which two costs are the same: sums taken in another order."""
_PRICES = 40


@frozen(eq=False)
class Chain:
    """``cost[v]`` and ``memory[v]`` are float64[K_v], ``transition[v]`` float64[K_v, K_{v+1}]; infinite means forbidden."""

    cost: tuple[Array, ...]
    memory: tuple[Array, ...]
    transition: tuple[Array, ...]

    @classmethod
    def of(
        cls, cost: Sequence[ArrayLike], memory: Sequence[ArrayLike] | None = None, transition: Sequence[ArrayLike] | None = None
    ) -> Chain:
        """From anything array-like; no memory and free transitions where left out. Raises ValueError on shapes."""
        c = tuple(np.asarray(x, dtype=np.float64) for x in cost)
        m = tuple(np.asarray(x, dtype=np.float64) for x in memory) if memory is not None else tuple(np.zeros(len(x)) for x in c)
        if transition is None:
            t = tuple(np.zeros((len(a), len(b))) for a, b in pairwise(c))
        else:
            t = tuple(np.asarray(x, dtype=np.float64) for x in transition)
        if not c or len(m) != len(c) or len(t) != len(c) - 1:
            raise ValueError(f"{len(c)} nodes need as many memory vectors and one transition less, not {len(m)} and {len(t)}")
        for v, (x, y) in enumerate(zip(c, m, strict=True)):
            if x.ndim != 1 or x.shape != y.shape or not len(x):
                raise ValueError(f"node {v}: cost {x.shape} and memory {y.shape} must be equally long vectors")
            if np.isnan(x).any() or not np.isfinite(y[np.isfinite(x)]).all():
                raise ValueError(f"node {v}: a cost is not a number, or a permitted option has no finite memory")
        for v, x in enumerate(t):
            if x.shape != (len(c[v]), len(c[v + 1])):
                raise ValueError(f"transition {v} has shape {x.shape}, its nodes {len(c[v])} and {len(c[v + 1])} options")
        return cls(c, m, t)

    def __len__(self) -> int:
        return len(self.cost)

    def price(self, choice: Sequence[int]) -> tuple[float, float]:
        """(memory, cost) of one choice."""
        memory = sum(float(m[k]) for m, k in zip(self.memory, choice, strict=True))
        cost = sum(float(c[k]) for c, k in zip(self.cost, choice, strict=True))
        cost += sum(float(t[a, b]) for t, a, b in zip(self.transition, choice[:-1], choice[1:], strict=True))
        return memory, cost


@frozen(eq=False)
class ChainFront:
    """All non-dominated (memory, cost) of a chain: memory ascending, cost descending; with the choices behind them."""

    memory: Array
    cost: Array
    _steps: tuple[tuple[IntArray, IntArray], ...]
    """Per node: the option of each point, and the point of the node before it."""
    _last: IntArray

    def __len__(self) -> int:
        return len(self.memory)

    def choice(self, i: int) -> tuple[int, ...]:
        """Options of point ``i``, first node first."""
        out: list[int] = []
        at = int(self._last[i])
        for option, parent in reversed(self._steps):
            out.append(int(option[at]))
            at = int(parent[at])
        return tuple(reversed(out))

    def within(self, budget: float) -> int | None:
        """The cheapest point whose memory is at most ``budget``, None when there is none."""
        n = int(np.searchsorted(self.memory, budget, side="right"))
        return n - 1 if n else None


@frozen
class ChainChoice:
    """One option per node, with what it takes."""

    choice: tuple[int, ...]
    memory: float
    cost: float


def nondominated(memory: Array, cost: Array) -> IntArray:
    """Indices of the points that none beats in both, by ascending memory; of equals one stays."""
    order = np.lexsort((cost, memory))
    c = cost[order]
    best = np.minimum.accumulate(c)
    keep = np.ones(len(c), dtype=bool)
    keep[1:] = c[1:] < best[:-1] - ROUNDING * np.abs(best[:-1])
    keep &= np.isfinite(c)
    return order[keep]


def pareto_chain(chain: Chain, *, budget: float = np.inf) -> ChainFront:
    """Every non-dominated choice whose memory is at most ``budget``."""
    return _fronts(chain, budget, None, np.inf)


def cheapest_chain(chain: Chain, budget: float, *, below: float = np.inf) -> ChainChoice | None:
    """The cheapest choice within ``budget``, exact to rounding; None when none fits, or none costs less than ``below``."""
    if not np.isfinite(budget):
        best = _priced(chain, 0.0)
        return None if best is None or best.total >= below else _choice(chain, best.first)
    bounds, incumbent = _lagrangian(chain, budget, below)
    if not bounds:
        return None
    if incumbent is not None and bounds[-1].gap_closed(incumbent.cost, budget):
        return incumbent if incumbent.cost < below else None
    known = below if incumbent is None else min(below, incumbent.cost)
    front = _fronts(chain, budget, bounds, known * (1 + ROUNDING) + ROUNDING)
    i = front.within(budget)
    found = incumbent if i is None else _choice(chain, front.choice(i))
    if found is None or (incumbent is not None and incumbent.cost < found.cost):
        found = incumbent
    return found if found is not None and found.cost < below else None


@frozen(eq=False)
class _Price:
    """Bounds of one λ: ``rest[v][k]`` is the cheapest cost + λ·memory of the nodes after v, given option k at v."""

    price: float
    rest: tuple[Array, ...]
    total: float
    first: tuple[int, ...]

    def gap_closed(self, cost: float, budget: float) -> bool:
        return cost <= (self.total - self.price * budget) * (1 + ROUNDING)


def _priced(chain: Chain, price: float) -> _Price | None:
    """Backward pass with memory priced; None when every choice is forbidden."""
    rest = [np.zeros(len(chain.cost[-1]))]
    pick: list[IntArray] = []
    for v in range(len(chain) - 1, 0, -1):
        table = chain.transition[v - 1] + (chain.cost[v] + price * _finite(chain.memory[v]) + rest[-1])[None, :]
        best = table.argmin(axis=1)
        pick.append(best)
        rest.append(table[np.arange(len(best)), best])
    start = chain.cost[0] + price * _finite(chain.memory[0]) + rest[-1]
    at = int(start.argmin())
    total = float(start[at])
    if not np.isfinite(total):
        return None
    choice = [at]
    for best in reversed(pick):
        choice.append(int(best[choice[-1]]))
    return _Price(price, tuple(reversed(rest)), total, tuple(choice))


def _finite(memory: Array) -> Array:
    return np.where(np.isfinite(memory), memory, 0.0)


def _choice(chain: Chain, choice: tuple[int, ...]) -> ChainChoice:
    memory, cost = chain.price(choice)
    return ChainChoice(choice, memory, cost)


def _lagrangian(chain: Chain, budget: float, below: float) -> tuple[list[_Price], ChainChoice | None]:
    """Bounds around the best price of memory, and the cheapest feasible choice met; no bounds: nothing fits ``below``."""
    free = _priced(chain, 0.0)
    if free is None or free.total >= below:
        return [], None
    low = _choice(chain, free.first)
    if low.memory <= budget:
        return [free], low
    least = _least_memory(chain)
    if least is None or least.memory > budget:
        return [], None
    high, incumbent, bounds = least, least, [free]
    for _ in range(_PRICES):
        if low.memory <= high.memory or high.cost <= low.cost:
            break
        price = _priced(chain, (high.cost - low.cost) / (low.memory - high.memory))
        assert price is not None
        if price.total - price.price * budget >= below:
            return [], None
        bounds.append(price)
        here = _choice(chain, price.first)
        line = low.cost + price.price * low.memory
        if here.memory <= budget and here.cost < incumbent.cost:
            incumbent = here
        if here.cost + price.price * here.memory >= line - abs(line) * 1e-11:
            break
        low, high = (low, here) if here.memory <= budget else (here, high)
    return [bounds[0], *sorted(bounds[1:], key=lambda p: p.total - p.price * budget)[-3:]], incumbent


def _least_memory(chain: Chain) -> ChainChoice | None:
    """A choice of least memory."""
    swapped = Chain(
        tuple(np.where(np.isfinite(c), m, np.inf) for c, m in zip(chain.cost, chain.memory, strict=True)),
        chain.cost,
        tuple(np.where(np.isfinite(t), 0.0, np.inf) for t in chain.transition),
    )
    least = _priced(swapped, 0.0)
    return None if least is None else _choice(chain, least.first)


def _fronts(chain: Chain, budget: float, bounds: Sequence[_Price] | None, limit: float) -> ChainFront:
    """The forward pass; with ``bounds`` points that cannot stay below ``limit`` within the budget are cut.

    Points of all options are kept in one list by ascending memory: adding an option's memory keeps the order, so the
    dominance test of every option is one running minimum.
    """
    slack = budget + abs(budget) * ROUNDING if np.isfinite(budget) else np.inf
    cut = _Cut(_least_rest(chain), slack, tuple(bounds or ()), limit)
    memory, cost, option = chain.memory[0], chain.cost[0], np.arange(len(chain.cost[0]))
    parent = np.zeros(len(option), dtype=np.int64)
    rows = np.flatnonzero(cut.alive(memory, cost, option, 0))
    steps: list[tuple[IntArray, IntArray]] = []
    for v in range(len(chain)):
        if v:
            rows_of, parts = _useful(memory, cost, option, chain.transition[v - 1]), []
            m, t, o = memory[rows_of], cost[rows_of], option[rows_of]
            for b in np.flatnonzero(np.isfinite(chain.cost[v])):
                mb = m + chain.memory[v][b]
                tb = t + (chain.transition[v - 1][:, b] + chain.cost[v][b])[o]
                good = np.flatnonzero(cut.alive(mb, tb, np.full(len(mb), b), v))
                good = good[_descending(mb[good], tb[good])]
                parts.append((mb[good], tb[good], np.full(len(good), b), rows_of[good]))
            empty = (np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
            memory, cost, option, parent = (np.concatenate(x) for x in zip(*(parts or [empty]), strict=True))
            rows = np.arange(len(memory))
        rows = rows[np.argsort(memory[rows], kind="stable")]
        memory, cost, option, parent = memory[rows], cost[rows], option[rows], parent[rows]
        steps.append((option, parent))
    last = nondominated(memory, cost)
    return ChainFront(memory[last], cost[last], tuple(steps), last)


def _descending(memory: Array, cost: Array) -> IntArray:
    """Non-dominated points of a list sorted by memory."""
    if not len(memory):
        return np.zeros(0, dtype=np.int64)
    best = np.minimum.accumulate(cost)
    keep = np.concatenate([[True], cost[1:] < best[:-1] - ROUNDING * np.abs(best[:-1])])
    kept = np.flatnonzero(keep)
    # Of equal memory the last kept is the cheapest.
    return np.asarray(kept[np.concatenate([memory[kept[1:]] > memory[kept[:-1]], [True]])])


def _useful(memory: Array, cost: Array, option: IntArray, transition: Array) -> IntArray:
    """Points that no other replaces whatever option comes next.

    A point of option a is replaced by one of option c with no more memory whose cost is lower by at least
    max_b (transition[c, b] − transition[a, b]), where b ranges over the options that may follow a.
    """
    if not len(memory):
        return np.zeros(0, dtype=np.int64)
    after = np.isfinite(transition)
    t = np.where(after, transition, 0.0)
    keep = np.asarray(after.any(axis=1))[option]
    first = np.searchsorted(memory, memory, side="left")  # strictly less memory comes before
    for c in np.unique(option):
        mine = np.where(option == c, cost, np.inf)
        before = np.concatenate([[np.inf], np.minimum.accumulate(mine)])[first]
        extra = np.where(after, np.where(after[c], t[c], np.inf) - t, -np.inf).max(axis=1)
        extra[~after.any(axis=1)] = 0.0
        keep &= ~(before + extra[option] <= cost)
    return np.flatnonzero(keep)


@frozen(eq=False)
class _Cut:
    """What a partial choice must satisfy to be worth continuing."""

    least_rest: tuple[Array, ...]
    budget: float
    bounds: tuple[_Price, ...]
    limit: float

    def alive(self, memory: Array, cost: Array, option: IntArray, v: int) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = np.isfinite(cost) & (memory + self.least_rest[v][option] <= self.budget)
        for p in self.bounds:
            good &= cost + p.rest[v][option] - p.price * (self.budget - memory) <= self.limit
        return good


def _least_rest(chain: Chain) -> tuple[Array, ...]:
    """Least memory of the nodes after v, given each option at v; infinite where nothing may follow."""
    rest = [np.zeros(len(chain.cost[-1]))]
    for v in range(len(chain) - 1, 0, -1):
        ahead = np.where(np.isfinite(chain.cost[v]), _finite(chain.memory[v]) + rest[-1], np.inf)
        rest.append(np.where(np.isfinite(chain.transition[v - 1]), ahead[None, :], np.inf).min(axis=1))
    return tuple(reversed(rest))
