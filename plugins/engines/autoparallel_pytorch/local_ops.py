"""Operators on pieces that aten lacks: lookups that know where their piece begins, attention, dropout.

All take and give plain local tensors, on any device, and run under ``LocalTensorMode`` too, where an offset is another
number on every rank. Steps name them ``autoparallel.<function>``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from autoparallel_pytorch.attention import attention, attention_backward
from autoparallel_pytorch.experts import experts, experts_backward
from autoparallel_pytorch.graph import Dtype
from autoparallel_pytorch.grouped import grouped_mm, grouped_outer
from autoparallel_pytorch.program import Length, Offset, Value
from autoparallel_pytorch.rules import overload

if TYPE_CHECKING:
    from torch import Tensor

    from autoparallel_pytorch.program import Program, Step


def embedding_rows(weight: Tensor, index: Tensor, offset: Any) -> Tensor:
    """Rows of this rank's piece of the table; zeros for rows of others."""
    local, foreign = _own(index, offset, weight.shape[0])
    return torch.nn.functional.embedding(local, weight).masked_fill(foreign.unsqueeze(-1), 0.0)


def embedding_rows_backward(grad: Tensor, index: Tensor, n_rows: int, padding: int, offset: Any) -> Tensor:
    """The gradient of this rank's rows."""
    local, foreign = _own(index, offset, n_rows)
    if padding >= 0:
        foreign = foreign | (index == padding)
    grad = grad.masked_fill(foreign.unsqueeze(-1), 0.0)
    return torch.ops.aten.embedding_dense_backward.default(grad, local, n_rows, -1, False)


def gather_piece(x: Tensor, dim: int, index: Tensor, offset: Any) -> Tensor:
    """``x.gather(dim, index)`` where this rank holds a piece of ``dim``: zeros for entries of others."""
    local, foreign = _own(index, offset, x.shape[dim])
    return x.gather(dim, local).masked_fill(foreign, 0.0)


def scatter_rows(values: Tensor, index: Tensor, n: int, offset: Any) -> Tensor:
    """[N] values at class ``index`` of each row → [N, n], n classes of this rank beginning at ``offset``."""
    local, foreign = _own(index, offset, n)
    rows = values.masked_fill(foreign, 0.0).unsqueeze(1)
    return values.new_zeros(values.shape[0], n).scatter(1, local.unsqueeze(1), rows)


def dropout(x: Tensor, p: float, seed: int, piece: Any) -> tuple[Tensor, Tensor]:
    """Zero elements with probability p, scale the others; every piece draws its own numbers, replicas the same."""
    generator = torch.Generator(device=x.device)
    generator.manual_seed((seed * 1_000_003 + int(piece)) % (1 << 63))
    mask = torch.rand(x.shape, generator=generator, device=x.device) >= p
    return x * mask.to(x.dtype) / (1.0 - p), mask


def histc(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    """Counts per bin, in the dtype of ``x``; integers too, which the CPU's kernel does not take."""
    if x.device.type == "cpu" and not x.is_floating_point():
        return torch.histc(x.double(), bins, low, high).to(x.dtype)
    return torch.histc(x, bins, low, high)


def _own(index: Tensor, offset: Any, length: int) -> tuple[Tensor, Tensor]:
    """The index inside of a piece, and where it is not in it."""
    local = index - offset
    foreign = (local < 0) | (local >= length)
    return local.masked_fill(foreign, 0), foreign


LOCAL: dict[str, Callable[..., Any]] = {
    "autoparallel.embedding_rows": embedding_rows,
    "autoparallel.embedding_rows_backward": embedding_rows_backward,
    "autoparallel.gather_piece": gather_piece,
    "autoparallel.scatter_rows": scatter_rows,
    "autoparallel.dropout": dropout,
    "autoparallel.attention": attention,
    "autoparallel.attention_backward": attention_backward,
    "autoparallel.experts": experts,
    "autoparallel.experts_backward": experts_backward,
    "autoparallel.histc": histc,
    "autoparallel.grouped_mm": grouped_mm,
    "autoparallel.grouped_outer": grouped_outer,
}


def function(op: str) -> Callable[..., Any]:
    """The callable of a step that is no move. Raises SpecError when this torch lacks it."""
    if op == "aten.view.default":
        return torch.ops.aten.reshape.default  # type: ignore[no-any-return]
    found = LOCAL.get(op)
    return overload(op) if found is None else found


def run_on_meta(step: Step, program: Program) -> tuple[Any, ...]:
    """The shapes of a step's results, from meta tensors of its local inputs."""

    def real(v: Any) -> Any:
        if isinstance(v, Value):
            info = program.values[v.id]
            return torch.empty(info.shape, dtype=getattr(torch, info.dtype), device="meta")
        if isinstance(v, Dtype):
            return getattr(torch, v.name)
        if isinstance(v, Length):
            return v.at(program.batch or 1)
        if isinstance(v, Offset):
            return 0
        if isinstance(v, tuple):
            return [real(x) for x in v]
        return v

    if step.op == "autoparallel.dropout":
        shape = program.values[next(step.reads())].shape
        return shape, shape
    tensors = any(True for _ in step.reads())
    extra = {} if tensors or step.op.startswith("autoparallel") else {"device": "meta"}
    out = function(step.op)(*(real(a) for a in step.args), **{k: real(v) for k, v in step.kwargs.items()}, **extra)
    outs: Sequence[Any] = out if isinstance(out, (tuple, list)) else (out,)
    return tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in outs)
