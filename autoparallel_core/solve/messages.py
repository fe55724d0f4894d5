"""Bounds and choices for assignment problems by message passing: the dual of the linear relaxation, without its matrix.

Sequential tree-reweighted message passing (TRW-S; Kolmogorov, IEEE TPAMI 28, 2006). Messages move cost between a node and
its couplings and change no total. A node v, taken in order, tells each later neighbour w what that one's options cost it::

    own[v](k) = cost[v](k) + Σ_u message[u→v](k)
    message[v→w](l) = min_k  share[v]·own[v](k) − message[w→v](k) + coupling[v,w](k, l)

with ``share[v] = 1 / max(earlier neighbours, later neighbours)``; then backwards likewise. After the way back every
coupling with its share of the later node costs nothing at its best, so no choice costs less than
``Σ_v (1 − share[v]·earlier[v])·min own[v]``, which no pass lowers. On the way forward, every node takes the option that is
best for the choices made and the messages to come.
Axis legend: K options of a node; G, H rows and columns of a core.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from autoparallel_core.solve.couplings import Coupled, Coupling

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

_BLOCK = 1 << 16
"""Entries of a core that are added at a time: they stay in the cache."""


@define(eq=False)
class Passing:
    """The messages of a problem, the bound that they give and the best choice met."""

    cost: list[Array]
    ways: list[list[_Way]]
    """Per node what it hears: one way in per coupling."""
    order: tuple[int, ...]
    problem: Coupled
    share: list[float]
    pairs: list[_Way]
    """Per coupling the way there."""
    base: float = -np.inf
    """The bound that the messages give."""
    bound: float = -np.inf
    best: float = np.inf
    choice: tuple[int, ...] | None = None
    passes: int = 0

    @classmethod
    def of(cls, problem: Coupled, order: tuple[int, ...]) -> Passing:
        at = {v: i for i, v in enumerate(order)}
        most = _large(problem)
        least = min((float(c.factor[np.isfinite(c.factor)].min(initial=np.inf)) for _, _, c in problem.couplings), default=1.0)
        ways: list[list[_Way]] = [[] for _ in problem.cost]
        pairs = []
        for u, v, c in problem.couplings:
            core = np.minimum(c.core, most / min(least, 1.0)) if np.isinf(c.core).any() else c.core
            ahead = Coupling(core, c.rows, c.columns, c.factor, c.row_groups, c.column_groups)
            there = _Way.of(u, ahead, most, earlier=at[u] < at[v])
            back = _Way.of(v, ahead.turned(), most, earlier=at[v] < at[u])
            there.other, back.other = back, there
            ways[v].append(there)
            ways[u].append(back)
            pairs.append(there)
        counts = [(sum(w.earlier for w in x), sum(not w.earlier for w in x)) for x in ways]
        share = [1.0 / max(*n, 1) for n in counts]
        return cls([np.minimum(c, most) for c in problem.cost], ways, order, problem, share, pairs)

    def step(self) -> None:
        """Once forward, once back."""
        self._forward()
        bound = 0.0
        for v in reversed(self.order):
            own = self._own(v)
            earlier = [w for w in self.ways[v] if w.earlier]
            for way in earlier:
                way.reply(self.share[v] * own)
            bound += max(0.0, 1.0 - self.share[v] * len(earlier)) * float(own.min())
        self.passes += 1
        self.base = bound
        self.rise(bound)

    def rise(self, bound: float) -> None:
        """No choice costs less than ``bound``."""
        self.bound = max(self.bound, min(bound, self.best))

    def _forward(self) -> None:
        chosen = [0] * len(self.cost)
        for v in self.order:
            own = self._own(v)
            cost = self.cost[v].copy()
            for way in self.ways[v]:
                cost += way.coupling[chosen[way.giver], :] if way.earlier else way.heard()
            chosen[v] = int(cost.argmin())
            for way in self.ways[v]:
                if not way.earlier:
                    way.reply(self.share[v] * own)
        self.offer(tuple(chosen))

    def offer(self, choice: tuple[int, ...]) -> None:
        """A choice, kept when it is the best one met."""
        cost = self.problem.price(choice)
        if cost < self.best:
            self.best, self.choice = cost, choice

    def _own(self, v: int) -> Array:
        own = self.cost[v].copy()
        for way in self.ways[v]:
            own += way.heard()
        return own

    def above(self) -> list[Array]:
        """Per node and option by how much every choice with it exceeds ``base``, at least."""
        out: list[Array] = [np.zeros(0)] * len(self.cost)
        for v in self.order:
            own = self._own(v)
            earlier = [w for w in self.ways[v] if w.earlier]
            above = max(0.0, 1.0 - self.share[v] * len(earlier)) * (own - own.min())
            for way in earlier:
                # What the coupling costs at its best with each option; over all options that is nothing.
                above += np.maximum(self.share[v] * own - way.heard() + way.least(), 0.0)
            out[v] = np.where(np.isfinite(self.problem.cost[v]), above, np.inf)
        return out

    def closed(self, gap: float) -> bool:
        return bool(np.isfinite(self.best)) and self.best - self.bound <= gap * abs(self.best)

    def resume(self, messages: Sequence[tuple[Array, Array]]) -> None:
        """Start from messages of another problem with the same couplings."""
        for there, (ahead, back) in zip(self.pairs, messages, strict=bool(messages)):
            there.message, there.other.message = ahead.copy(), back.copy()

    def messages(self) -> tuple[tuple[Array, Array], ...]:
        """There and back per coupling, for :meth:`resume`."""
        return tuple((w.message, w.other.message) for w in self.pairs)


def _large(problem: Coupled) -> float:
    """What forbidden options and pairs count as: more than a choice that takes the worst of what each node has at its best."""
    total = sum(float(np.abs(c[np.isfinite(c)]).max(initial=0.0)) for c in problem.cost)
    for _, _, c in problem.couplings:
        finite = c.core[np.isfinite(c.core)]
        total += float(np.abs(finite).mean()) * float(c.factor[np.isfinite(c.factor)].max(initial=0.0)) if finite.size else 0.0
    return 2.0 * total or 1.0


@define(eq=False)
class _Way:
    """One direction of a coupling, and the message that it carries: per class of groups there, one number per column."""

    giver: int
    coupling: Coupling
    earlier: bool
    """Whether the giver comes before the receiver."""
    large: float
    products: tuple[tuple[tuple[float, _Gather], ...], ...]
    """Per class the scales, and the options here that have them."""
    at: IntArray
    """[K there] into the message, flat."""
    message: Array
    """[classes · H]."""
    other: _Way = field(init=False)

    @classmethod
    def of(cls, giver: int, c: Coupling, large: float, *, earlier: bool) -> _Way:
        classes: dict[tuple[tuple[float, tuple[int, ...]], ...], int] = {}
        of_group = []
        used = np.bincount(c.row_groups, minlength=c.factor.shape[0]) > 0
        for b in range(c.factor.shape[1]):
            column = c.factor[:, b]
            scales = sorted({float(s) for s in column[used] if np.isfinite(s)})
            key = tuple((s, tuple(np.flatnonzero(used & (column == s)).tolist())) for s in scales)
            of_group.append(classes.setdefault(key, len(classes)))
        n = c.core.shape[1]
        at = np.array(of_group, dtype=np.int64)[c.column_groups] * n + c.columns
        products = tuple(tuple((s, _Gather.of(c, groups)) for s, groups in key) for key in classes)
        return cls(giver, c, earlier, large, products, at, np.zeros(len(classes) * n))

    def heard(self) -> Array:
        """The message by the receiver's options."""
        return self.message[self.at]

    def reply(self, offered: Array) -> None:
        """The receiver answers: its message to the giver, from what it offers of its own costs."""
        self.other.message = self.other.best(offered - self.heard())

    def least(self) -> Array:
        """``min over the giver's options of coupling − message to the giver``, by the receiver's options."""
        return self.best(-self.other.heard())[self.at]

    def best(self, given: Array) -> Array:
        """``min_k given[k] + coupling[k, ·]``, as a message."""
        n = self.coupling.core.shape[1]
        out = np.full(len(self.message), float(given.min()) + self.large)
        for i, terms in enumerate(self.products):
            part = out[i * n : (i + 1) * n]
            for scale, gather in terms:
                np.minimum(part, scale * _min_plus(gather.least(given) / scale, gather.core(self.coupling.core)), out=part)
        return out


@frozen(eq=False)
class _Gather:
    """The least over the options of some groups that share a row of the core."""

    options: IntArray | None
    """Sorted by row; None: all of them, in order, one per row."""
    starts: IntArray
    present: IntArray | None
    """The rows that occur; None: all."""

    @classmethod
    def of(cls, c: Coupling, groups: tuple[int, ...]) -> _Gather:
        options = np.flatnonzero(np.isin(c.row_groups, groups))
        options = options[np.argsort(c.rows[options], kind="stable")]
        present, starts = np.unique(c.rows[options], return_index=True)
        whole = len(present) == c.core.shape[0]
        if whole and len(options) == len(c.rows) == len(present) and (options == np.arange(len(options))).all():
            return cls(None, starts, None)
        return cls(options, starts, None if whole else present)

    def least(self, given: Array) -> Array:
        return given if self.options is None else np.minimum.reduceat(given[self.options], self.starts)

    def core(self, core: Array) -> Array:
        return core if self.present is None else core[self.present]


def _min_plus(given: Array, core: Array) -> Array:
    """``min_g given[g] + core[g, h]`` for all h."""
    rows, columns = core.shape
    step = max(1, _BLOCK // columns)
    if rows <= step:
        return np.asarray((given[:, None] + core).min(axis=0))
    out = (given[:step, None] + core[:step]).min(axis=0)
    for i in range(step, rows, step):
        np.minimum(out, (given[i : i + step, None] + core[i : i + step]).min(axis=0), out=out)
    return np.asarray(out)
