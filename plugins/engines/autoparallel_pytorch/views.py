"""Views carry placements: which placement before a chain of views gives the one wanted after it.

A view computes nothing and moves nothing, so the planner has no node for it: the edge from the tensor to its reader
carries the placement that the reader wants back through the views. Where a view cannot carry a sharded dimension (it
is flattened behind another, or sliced), the tensor is whole there and cut after that view, which costs no communication.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.graph import Graph, Meta, Node, Ref
from autoparallel_pytorch.placement import Placements, R, cuts

VIEWS = frozenset({"aten.view.default", "aten.permute.default", "aten.expand.default", "aten.slice.Tensor", "aten.select.int"})

_WHOLE = -1
"""The dimension is made here by repetition: any cut of it comes from the whole tensor before."""
_BLOCKED = -2


@frozen
class Step:
    """One view of a chain: ``source[d]`` is the dimension before that carries dimension ``d`` after."""

    node: int
    source: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


@frozen
class Carried:
    """A placement carried back through a chain."""

    base: Placements
    """What the tensor before the chain must have."""
    steps: tuple[tuple[Placements, Placements], ...]
    """Per view the placement that it gives and the one that is cut from it (equal where nothing is cut)."""


def is_view(node: Node) -> bool:
    return node.op in VIEWS


def chain_of(graph: Graph, ref: Ref) -> tuple[Ref, tuple[Step, ...]]:
    """The tensor that a reference views, and the views in order."""
    steps: list[Step] = []
    while is_view(node := graph.nodes[ref.node]):
        (base,) = node.refs()
        before, after = graph.meta(base), graph.meta(ref)
        steps.append(Step(node.id, _sources(node, before, after), before.shape, after.shape))
        ref = base
    return ref, tuple(reversed(steps))


def carry(steps: Sequence[Step], wanted: Placements, mesh: Sequence[int]) -> Carried:
    """The placement before the chain that gives ``wanted`` after it."""
    found: list[tuple[Placements, Placements]] = []
    now = wanted
    for step in reversed(steps):
        source = dict(enumerate(step.source))
        cut = cuts(now, mesh)
        stopped = {d for d, n in cut.items() if not _carries(step, source[d], n)}
        given = tuple(R if p in stopped else p for p in now)
        found.append((given, now))
        now = tuple(p if p < 0 else source[p] if source[p] >= 0 else R for p in given)
    return Carried(now, tuple(reversed(found)))


def _carries(step: Step, source: int, pieces: int) -> bool:
    return source == _WHOLE or (source >= 0 and step.before[source] % pieces == 0)


def _sources(node: Node, before: Meta, after: Meta) -> tuple[int, ...]:
    if node.op == "aten.view.default":
        return _reshape(before.shape, after.shape)
    if node.op == "aten.permute.default":
        return tuple(node.args[1])
    if node.op == "aten.expand.default":
        return tuple(_WHOLE if b == 1 and a != 1 else d for d, (b, a) in enumerate(zip(before.shape, after.shape, strict=True)))
    dim = node.args[1]
    if node.op == "aten.slice.Tensor":
        return tuple(_BLOCKED if d == dim else d for d in range(len(after.shape)))
    if node.op == "aten.select.int":
        return tuple(d if d < dim else d + 1 for d in range(len(after.shape)))
    raise SpecError(f"{node.op} is no view")


def _reshape(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    """Leading dimensions of each group of dimensions with equal products; the others cannot be cut apart."""
    source = [_BLOCKED] * len(after)
    i = j = 0
    while i < len(before) and j < len(after):
        if before[i] == 1 or after[j] == 1:
            i, j = i + (before[i] == 1), j + (after[j] == 1)
            continue
        source[j] = i
        left, right = before[i], after[j]
        while left != right:
            if left < right:
                i += 1
                left *= before[i]
            else:
                j += 1
                right *= after[j]
        i, j = i + 1, j + 1
    return tuple(source)
