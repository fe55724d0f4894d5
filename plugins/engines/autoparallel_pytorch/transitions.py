"""From one placement to another: the cheapest sequence of collectives, each over one mesh dimension.

Steps and when they are right (mesh dimensions on one tensor dimension nest from left to right, so only the innermost may
change; R replicated, P partial, S(d) sharded):

=============  =====  ==================================================
step           comm   over mesh dimension m
=============  =====  ==================================================
all_gather     yes    S(d) → R, m innermost on d
all_reduce     yes    P → R
reduce_scatter yes    P → S(d), m would be innermost on d
all_to_all     yes    S(d) → S(e), m innermost on d and then on e
slice          no     R → S(d), m would be innermost on d
scale          no     R → P, every rank keeps its value over the group size
=============  =====  ==================================================

Costs are affine in the bytes of the whole tensor, so one graph of states per rank of tensor serves every tensor.
Axis legend: U states (placements), E steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from autoparallel_pytorch.machine import Machine
from autoparallel_pytorch.placement import PMAX, PMIN, P, Placements, R, fits, shards

Array = NDArray[np.float64]

_TINY = 1e-10
"""Seconds of a step that moves nothing: fewer steps are better among equals."""


_AT_ONCE = 64
"""Sources of one search: their distances stay in the cache."""


class Move(NamedTuple):
    """One step of a redistribution."""

    kind: str
    mesh_dim: int
    source: int
    """Placement before, on that mesh dimension."""
    target: int


@define(eq=False)
class _States:
    """All states of tensors of one rank, and the steps between them with their affine costs."""

    states: list[Placements]
    index: dict[Placements, int]
    tail: NDArray[np.int64]
    head: NDArray[np.int64]
    moves: list[Move]
    fixed: Array
    per_byte: Array


@define(eq=False)
class Transitions:
    """Costs and steps on one machine; remembers what it has computed."""

    machine: Machine
    _by_rank: dict[tuple[int, bool], _States] = field(factory=dict)
    _rows: dict[tuple[bool, tuple[int, ...], float, int, Placements], Array] = field(factory=dict)
    _allowed: dict[tuple[bool, tuple[int, ...]], NDArray[np.bool_]] = field(factory=dict)

    def table(
        self,
        sources: Sequence[Placements],
        targets: Sequence[Placements],
        shape: Sequence[int],
        n_bytes: float,
        *,
        sharing: int = 1,
    ) -> Array:
        """Seconds from each placement of some to each of others, float64[len(sources), len(targets)].

        ``sharing`` tensors go in one collective and share its latency.
        """
        rows: list[Array] = [np.zeros(0)] * len(sources)
        for extremes in (False, True):
            own = [i for i, s in enumerate(sources) if any(p in (PMAX, PMIN) for p in s) == extremes]
            if not own:
                continue
            graph = self._graph(sources[own[0]], shape)[0]
            wanted = np.array([graph.index[t] for t in targets])
            keys = [(extremes, tuple(shape), float(n_bytes), sharing, sources[i]) for i in own]
            new = [k for k in keys if k not in self._rows]
            if new:
                cost = self._costs(graph, extremes, shape, n_bytes, sharing)
                self._rows |= dict(zip(new, _distances(graph, [graph.index[k[4]] for k in new], cost), strict=True))
            for i, k in zip(own, keys, strict=True):
                rows[i] = self._rows[k][wanted]
        return np.array(rows)

    def path(
        self, source: Placements, target: Placements, shape: Sequence[int], n_bytes: float, *, sharing: int = 1
    ) -> tuple[list[Move], list[float]]:
        """The steps of the cheapest way when so many tensors share the latency, and the seconds of each alone."""
        graph, extremes = self._graph(source, shape)
        cost = self._costs(graph, extremes, shape, n_bytes, sharing)
        start, goal = graph.index[source], graph.index[target]
        leaving: dict[int, list[int]] = {}
        for e, u in enumerate(graph.tail):
            leaving.setdefault(int(u), []).append(e)
        best, via, heap = {start: 0.0}, {}, [(0.0, start)]
        while heap:
            d, u = heapq.heappop(heap)
            if u == goal:
                break
            if d > best[u]:
                continue
            for e in leaving.get(u, ()):
                v, total = int(graph.head[e]), d + float(cost[e])
                if total < best.get(v, np.inf):
                    best[v], via[v] = total, e
                    heapq.heappush(heap, (total, v))
        edges = []
        while goal != start:
            edges.append(via[goal])
            goal = int(graph.tail[via[goal]])
        edges.reverse()
        alone = graph.fixed + graph.per_byte * n_bytes
        return [graph.moves[e] for e in edges], [float(alone[e]) for e in edges]

    def _costs(self, graph: _States, extremes: bool, shape: Sequence[int], n_bytes: float, sharing: int) -> Array:
        """Seconds per step, infinite where the piece it makes has no whole shape."""
        key = (extremes, tuple(shape))
        allowed = self._allowed.get(key)
        if allowed is None:
            fitting = np.array([fits(s, self.machine.mesh.sizes, shape) for s in graph.states])
            allowed = self._allowed[key] = fitting[graph.head]
        return np.where(allowed, graph.fixed / sharing + graph.per_byte * n_bytes, np.inf)

    def _graph(self, source: Placements, shape: Sequence[int]) -> tuple[_States, bool]:
        key = (len(shape), any(p in (PMAX, PMIN) for p in source))
        found = self._by_rank.get(key)
        if found is None:
            found = self._by_rank[key] = _build(self.machine, *key)
        return found, key[1]


def _build(machine: Machine, ndim: int, extremes: bool) -> _States:
    sizes = machine.mesh.sizes
    alphabet = (R, P, *((PMAX, PMIN) if extremes else ()), *range(ndim))
    states = list(product(alphabet, repeat=len(sizes)))
    index = {s: i for i, s in enumerate(states)}
    tail, head, moves, fixed, per_byte = [], [], [], [], []
    zero, giga = np.zeros(()), np.asarray(1e9)

    def add(u: Placements, m: int, target: int, kind: str) -> None:
        local = 1.0 / shards(u, sizes)
        tail.append(index[u])
        head.append(index[(*u[:m], target, *u[m + 1 :])])
        moves.append(Move(kind, m, u[m], target))
        # A gather or scatter along an inner dimension also rearranges the buffer: one read and one write.
        inner = kind in ("all_gather", "reduce_scatter", "all_to_all") and max(u[m], target if kind != "all_gather" else 0) > 0
        if kind in ("slice", "scale"):
            copies = 2.0 * local / machine.hbm_bytes_per_s if kind == "scale" else 0.0
            fixed.append(_TINY)
            per_byte.append(copies)
            return
        price = getattr(machine, f"{kind}_s")
        base = float(price(zero, m))
        whole = local * sizes[m] if kind == "all_gather" else local
        fixed.append(base + _TINY)
        per_byte.append((float(price(giga, m)) - base) / 1e9 * local + (2.0 * whole / machine.hbm_bytes_per_s if inner else 0.0))

    for u in states:
        for m, p in enumerate(u):
            innermost = {d: all(q != d for q in u[m + 1 :]) for d in range(ndim)}
            if p >= 0 and innermost[p]:
                add(u, m, R, "all_gather")
                for e in range(ndim):
                    if e != p and innermost[e]:
                        add(u, m, e, "all_to_all")
            elif p in (P, PMAX, PMIN):
                add(u, m, R, "all_reduce")
                for d in range(ndim):
                    if innermost[d] and p == P:
                        add(u, m, d, "reduce_scatter")
            elif p == R:
                add(u, m, P, "scale")
                for d in range(ndim):
                    if innermost[d]:
                        add(u, m, d, "slice")
    return _States(states, index, np.array(tail), np.array(head), moves, np.array(fixed), np.array(per_byte))


def _distances(graph: _States, sources: Sequence[int], cost: Array) -> Array:
    """[sources, U]: Bellman-Ford over the steps, in place; paths are as long as the mesh has dimensions, times a few."""
    usable = np.flatnonzero(np.isfinite(cost))
    usable = usable[np.argsort(graph.head[usable], kind="stable")]
    heads, starts, counts = np.unique(graph.head[usable], return_index=True, return_counts=True)
    # The first step into every state that has one, then the second, …
    rounds = []
    for i in range(int(counts.max(initial=0))):
        edges = usable[starts[counts > i] + i]
        rounds.append((heads[counts > i], graph.tail[edges], cost[edges, None]))
    out = np.empty((len(sources), len(graph.states)))
    for first in range(0, len(sources), _AT_ONCE):
        some = sources[first : first + _AT_ONCE]
        best = np.full((len(graph.states), len(some)), np.inf)
        best[some, np.arange(len(some))] = 0.0
        changed = True
        while changed:
            before = best.copy()
            for into, tail, seconds in rounds:
                best[into] = np.minimum(best[into], best[tail] + seconds)
            changed = not np.array_equal(best, before)
        out[first : first + _AT_ONCE] = best.T
    return out
