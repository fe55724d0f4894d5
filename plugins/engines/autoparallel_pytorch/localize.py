"""The operator that works on pieces: sizes become local, and lookups learn where their piece begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_pytorch.graph import Dtype, Graph, Node, Size
from autoparallel_pytorch.placement import Placements, cuts
from autoparallel_pytorch.program import Length, Offset, Value

SIZE_ARGUMENT = {
    "aten.view.default": 1, "aten.expand.default": 1, "aten.zeros.default": 0, "aten.ones.default": 0, "aten.full.default": 0,
    "aten.slice_backward.default": 1, "aten.select_backward.default": 1,
}  # fmt: skip
"""Operators whose arguments hold the shape of their result, and where."""

EXPERTS = {"autoparallel.experts": 3, "autoparallel.experts_backward": 4}
"""Position of the experts' first matrix among the tensor inputs."""


def localized(
    graph: Graph, node: Node, outs: Sequence[Placements], ins: Sequence[Placements], sizes: Sequence[int], args: Any = None
) -> tuple[str, tuple[Any, ...]]:
    """Name and arguments for the pieces that ``outs`` and ``ins`` say, on a mesh of ``sizes``."""
    args = node.args if args is None else args
    op = node.op
    refs = list(node.refs())
    if op in SIZE_ARGUMENT:
        at = SIZE_ARGUMENT[op]
        return op, (*args[:at], lengths(args[at], cuts(outs[0], sizes)), *args[at + 1 :])
    if op == "aten.embedding.default" and 0 in ins[0]:
        return "autoparallel.embedding_rows", (args[0], args[1], _offset(ins[0], 0, graph.meta(refs[0]).shape[0], sizes))
    if op == "aten.embedding_dense_backward.default" and 0 in outs[0]:
        offset = _offset(outs[0], 0, args[2], sizes)
        return "autoparallel.embedding_rows_backward", (args[0], args[1], offset.length, args[3], offset)
    if op == "aten.gather.default":
        shape = graph.meta(refs[0]).shape
        dim = args[1] % len(shape)
        if dim in ins[0]:
            return "autoparallel.gather_piece", (args[0], dim, args[2], _offset(ins[0], dim, shape[dim], sizes))
    if op == "autoparallel.scatter_rows":
        offset = _offset(outs[0], 1, args[2], sizes)
        return op, (args[0], args[1], offset.length, offset)
    if op in EXPERTS and 0 in ins[EXPERTS[op]]:
        return op, (*args, _offset(ins[EXPERTS[op]], 0, graph.meta(refs[EXPERTS[op]]).shape[0], sizes))
    if op == "autoparallel.grouped_mm" and 0 in ins[1]:
        return op, (*args, _offset(ins[1], 0, graph.meta(refs[1]).shape[0], sizes))
    if op == "autoparallel.grouped_outer" and 0 in outs[0]:
        offset = _offset(outs[0], 0, args[3], sizes)
        return op, (*args[:3], offset.length, offset)
    if op == "autoparallel.dropout":
        dims = tuple(m for m, p in enumerate(outs[0]) if p >= 0)
        return op, (*args, Offset(dims, Length(1, 0, 1)))
    return op, tuple(_whole(a) for a in args)


def lengths(shape: Sequence[Any], cut: Mapping[int, int]) -> tuple[Any, ...]:
    """A shape's sizes on one rank."""
    out: list[Any] = []
    for d, s in enumerate(shape):
        fixed, per_batch = (s.fixed, s.per_batch) if isinstance(s, Size) else (s, 0)
        pieces = cut.get(d, 1)
        out.append(fixed // pieces if not per_batch else Length(fixed, per_batch, pieces))
    return tuple(out)


def _offset(placements: Placements, dim: int, length: int, sizes: Sequence[int]) -> Offset:
    dims = tuple(m for m, p in enumerate(placements) if p == dim)
    return Offset(dims, Length(length, 0, cuts(placements, sizes).get(dim, 1)))


def _whole(value: Any) -> Any:
    """A size outside of shapes is a number of the whole tensor."""
    if isinstance(value, Size):
        return Length(value.fixed, value.per_batch, 1)
    if isinstance(value, tuple) and not isinstance(value, (Value, Dtype, Length, Offset)) and not hasattr(value, "_fields"):
        return tuple(_whole(v) for v in value)
    return value
