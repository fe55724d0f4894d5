"""Places the nodes of a directed acyclic graph in layers: edges point down, with few crossings.

The usual four steps (Sugiyama, Tagawa, Toda, IEEE Trans. SMC 11(2), 1981): layers by longest path, bends where an edge
passes a layer, order within layers by the mean position of the neighbours, positions that keep the order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise

from attrs import define, field

GAP = 18.0
_SWEEPS = 6


@define
class Layered:
    """Centres of nodes, and the points that every edge passes."""

    at: dict[Hashable, tuple[float, int]] = field(factory=dict)
    """Node → x of its centre, layer."""
    bends: dict[tuple[Hashable, Hashable], list[tuple[float, int]]] = field(factory=dict)
    width: float = 0.0
    layers: int = 0


def layered(widths: Mapping[Hashable, float], edges: Sequence[tuple[Hashable, Hashable]]) -> Layered:
    """Lay a graph out.

    Args:
        widths: node → its width, in an order in which every edge leads forward.
        edges: (from, to).
    """
    layer = _layers(widths, edges)
    size = dict(widths)
    rows: list[list[Hashable]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node in widths:
        rows[layer[node]].append(node)
    near: dict[Hashable, tuple[list[Hashable], list[Hashable]]] = {n: ([], []) for n in widths}
    chains: dict[tuple[Hashable, Hashable], list[Hashable]] = {}
    for u, v in dict.fromkeys(edges):
        chain: list[Hashable] = []
        for k in range(layer[u] + 1, layer[v]):
            bend = ("bend", u, v, k)
            size[bend] = 6.0
            near[bend] = ([], [])
            rows[k].append(bend)
            chain.append(bend)
        chains[u, v] = chain
        path = [u, *chain, v]
        for a, b in pairwise(path):
            near[a][1].append(b)
            near[b][0].append(a)
    _order(rows, near)
    x = _positions(rows, near, size)
    found = Layered(layers=len(rows))
    if x:
        left = min(x[n] - size[n] / 2 for n in x)
        x = {n: p - left for n, p in x.items()}
        found.width = max(x[n] + size[n] / 2 for n in x)
    found.at = {n: (x[n], layer[n]) for n in widths}
    found.bends = {edge: [(x[b], layer[edge[0]] + 1 + i) for i, b in enumerate(chain)] for edge, chain in chains.items()}
    return found


def _layers(nodes: Mapping[Hashable, float], edges: Sequence[tuple[Hashable, Hashable]]) -> dict[Hashable, int]:
    before: dict[Hashable, list[Hashable]] = {n: [] for n in nodes}
    after: dict[Hashable, list[Hashable]] = {n: [] for n in nodes}
    for u, v in edges:
        before[v].append(u)
        after[u].append(v)
    layer: dict[Hashable, int] = {}
    for n in nodes:
        layer[n] = max((layer[u] + 1 for u in before[n]), default=0)
    for n in reversed(list(nodes)):  # what nothing leads to stands right above its first reader
        if not before[n] and after[n]:
            layer[n] = min(layer[v] for v in after[n]) - 1
    least = min(layer.values(), default=0)
    return {n: k - least for n, k in layer.items()}


def _order(rows: list[list[Hashable]], near: Mapping[Hashable, tuple[list[Hashable], list[Hashable]]]) -> None:
    place = {n: float(i) for row in rows for i, n in enumerate(row)}
    for sweep in range(_SWEEPS):
        side = sweep % 2
        for row in rows if side == 0 else reversed(rows):
            mean = {n: sum(place[m] for m in near[n][side]) / len(near[n][side]) if near[n][side] else place[n] for n in row}
            row.sort(key=lambda n: mean[n])
            place |= {n: float(i) for i, n in enumerate(row)}


def _positions(
    rows: list[list[Hashable]], near: Mapping[Hashable, tuple[list[Hashable], list[Hashable]]], size: Mapping[Hashable, float]
) -> dict[Hashable, float]:
    x: dict[Hashable, float] = {}
    for row in rows:
        total = sum(size[n] + GAP for n in row)
        at = -total / 2
        for n in row:
            x[n] = at + (size[n] + GAP) / 2
            at += size[n] + GAP
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = [_mean([x[m] for m in (*near[n][0], *near[n][1])], x[n]) for n in row]
            _settle(row, wish, size, x)
    return x


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _settle(row: list[Hashable], wish: list[float], size: Mapping[Hashable, float], x: dict[Hashable, float]) -> None:
    """Positions nearest to the wishes that keep order and distance: blocks of touching nodes move as one."""
    blocks: list[tuple[float, list[tuple[Hashable, float]]]] = []  # sum of wished left ends, (node, offset)
    for n, want in zip(row, wish, strict=True):
        members = [(n, 0.0)]
        total = want - size[n] / 2
        while blocks:
            left_total, left_members = blocks[-1]
            width = left_members[-1][1] + size[left_members[-1][0]] + GAP
            if left_total / len(left_members) + width <= total / len(members):
                break
            blocks.pop()
            total = left_total + total - width * len(members)
            members = [*left_members, *((m, o + width) for m, o in members)]
        blocks.append((total, members))
    for total, members in blocks:
        begin = total / len(members)
        for n, offset in members:
            x[n] = begin + offset + size[n] / 2
