"""Operators written in another form while recording: one form per meaning keeps rules and costs few.

Views become five kinds: ``view`` (any reshape), ``permute``, ``expand``, ``slice`` and ``select``. Log-softmax and the
negative log likelihood become reductions, a gather and a scatter, so that the class dimension may be sharded with two
small all-reduces (the vocabulary-parallel loss; Megatron-LM, arXiv 1909.08053, section 3). A mean is a sum and a division,
so that partial sums are the only partial values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from autoparallel_pytorch.recorder import Recorder

aten = torch.ops.aten

IDENTITY = frozenset({"alias", "detach", "clone", "contiguous", "lift_fresh", "lift", "_to_copy", "positive", "view_as"})


def _view(recorder: Recorder, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    size = tuple(int(s) for s in shape)
    if tuple(x.shape) == size:
        return aten.alias.default(x)
    return recorder.run(aten.reshape.default, (x, list(size)), {}, name="aten.view.default", plain=(recorder.ref(x), size))


def view(recorder: Recorder, x: torch.Tensor, shape: Sequence[int], **_: Any) -> torch.Tensor:
    size = [int(s) for s in shape]
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        size[size.index(-1)] = x.numel() // rest if rest else 0
    return _view(recorder, x, size)


def unsqueeze(recorder: Recorder, x: torch.Tensor, dim: int) -> torch.Tensor:
    at = dim % (x.ndim + 1)
    return _view(recorder, x, (*x.shape[:at], 1, *x.shape[at:]))


def squeeze(recorder: Recorder, x: torch.Tensor, dim: int | Sequence[int] | None = None) -> torch.Tensor:
    every = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {d % x.ndim for d in every if x.ndim and x.shape[d] == 1}
    return _view(recorder, x, [s for d, s in enumerate(x.shape) if d not in gone])


def permute(recorder: Recorder, x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    order = tuple(d % x.ndim for d in dims)
    if order == tuple(range(x.ndim)):
        return aten.alias.default(x)
    return recorder.run(aten.permute.default, (x, list(order)), {})


def transpose(recorder: Recorder, x: torch.Tensor, a: int, b: int) -> torch.Tensor:
    order = list(range(x.ndim))
    if x.ndim:
        order[a], order[b] = order[b], order[a]
    return permute(recorder, x, order)


def t(recorder: Recorder, x: torch.Tensor) -> torch.Tensor:
    return permute(recorder, x, (1, 0) if x.ndim == 2 else range(x.ndim))


def expand(recorder: Recorder, x: torch.Tensor, shape: Sequence[int], *, implicit: bool = False) -> torch.Tensor:
    del implicit
    lead = len(shape) - x.ndim
    size = tuple(int(s) if s != -1 else int(x.shape[i - lead]) for i, s in enumerate(shape))
    if lead:
        x = _view(recorder, x, (1,) * lead + tuple(x.shape))
    if tuple(x.shape) == size:
        return aten.alias.default(x)
    return recorder.run(aten.expand.default, (x, list(size)), {})


def slice_(
    recorder: Recorder, x: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    d, n = dim % x.ndim, int(x.shape[dim])
    first, last, _ = slice(start, end, step).indices(n)
    if first == 0 and last == n and step == 1:
        return aten.alias.default(x)
    if last == n:
        last = torch.iinfo(torch.int64).max
    return recorder.run(aten.slice.Tensor, (x, d, first, last, step), {})


def select(recorder: Recorder, x: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    d = dim % x.ndim
    return recorder.run(aten.select.int, (x, d, index if index >= 0 else index + int(x.shape[d])), {})


def split(recorder: Recorder, x: torch.Tensor, size: int | Sequence[int], dim: int = 0) -> list[torch.Tensor]:
    n = int(x.shape[dim])
    sizes = [min(size, n - i) for i in range(0, n, size)] if isinstance(size, int) else list(size)
    out, at = [], 0
    for s in sizes:
        out.append(slice_(recorder, x, dim, at, at + s))
        at += s
    return out


def unbind(recorder: Recorder, x: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    return [select(recorder, x, dim, i) for i in range(int(x.shape[dim]))]


def mean(recorder: Recorder, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    del recorder
    dims = list(range(x.ndim)) if not dim and dim != 0 else [dim] if isinstance(dim, int) else list(dim)
    total = aten.sum.dim_IntList(x, dims, keepdim, dtype=dtype)
    return aten.div.Tensor(total, math.prod(int(x.shape[d]) for d in dims))


def log_softmax(recorder: Recorder, x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    del recorder
    if half_to_float:
        x = aten._to_copy.default(x, dtype=torch.float32)
    shifted = aten.sub.Tensor(x, aten.amax.default(x, [dim], True))
    norm = aten.log.default(aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True))
    return aten.sub.Tensor(shifted, norm)


def log_softmax_backward(recorder: Recorder, grad: torch.Tensor, out: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    del recorder
    weighted = aten.mul.Tensor(aten.exp.default(out), aten.sum.dim_IntList(grad, [dim], True))
    result = aten.sub.Tensor(grad, weighted)
    return result if result.dtype == dtype else aten._to_copy.default(result, dtype=dtype)


def nll_forward(
    recorder: Recorder, logp: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore: int
) -> Any:
    if weight is not None or logp.ndim != 2:
        return recorder.run(aten.nll_loss_forward.default, (logp, target, weight, reduction, ignore), {})
    valid, index = _valid(target, ignore)
    weights = aten._to_copy.default(valid, dtype=logp.dtype)
    picked = aten.gather.default(logp, 1, aten.unsqueeze.default(index, 1))
    losses = aten.mul.Tensor(aten.neg.default(aten.squeeze.dim(picked, 1)), weights)
    if reduction == 0:
        return losses, aten.zeros.default([], dtype=logp.dtype, device="meta")
    count = aten.sum.dim_IntList(weights, [0])
    summed = aten.sum.dim_IntList(losses, [0])
    return (aten.div.Tensor(summed, count) if reduction == 1 else summed), count


def nll_backward(
    recorder: Recorder, grad: torch.Tensor, logp: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int,
    ignore: int, total_weight: torch.Tensor,
) -> Any:  # fmt: skip
    if weight is not None or logp.ndim != 2:
        return recorder.run(aten.nll_loss_backward.default, (grad, logp, target, weight, reduction, ignore, total_weight), {})
    valid, index = _valid(target, ignore)
    weights = aten._to_copy.default(valid, dtype=logp.dtype)
    scale = aten.neg.default(aten.div.Tensor(grad, total_weight) if reduction == 1 else grad)
    rows = aten.mul.Tensor(weights, scale)
    out = torch.empty_like(logp)
    recorder.emit("autoparallel.scatter_rows", (rows, index, int(logp.shape[1])), {}, (out,))
    return out


def _valid(target: torch.Tensor, ignore: int) -> tuple[torch.Tensor, torch.Tensor]:
    valid = aten.ne.Scalar(target, ignore)
    return valid, aten.mul.Tensor(target, valid)


def new_factory(name: str) -> Callable[..., torch.Tensor]:
    """``new_zeros`` and its like depend on nothing but their arguments."""

    def make(recorder: Recorder, x: torch.Tensor, size: Sequence[int], *value: Any, **kwargs: Any) -> torch.Tensor:
        del recorder
        return getattr(aten, name).default(list(size), *value, dtype=kwargs.get("dtype") or x.dtype, device="meta")

    return make


def like_factory(name: str) -> Callable[..., torch.Tensor]:
    def make(recorder: Recorder, x: torch.Tensor, *value: Any, **kwargs: Any) -> torch.Tensor:
        del recorder
        return getattr(aten, name).default(list(x.shape), *value, dtype=kwargs.get("dtype") or x.dtype, device="meta")

    return make


def sum_(recorder: Recorder, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    dims = tuple(range(x.ndim)) if not dim and dim != 0 else tuple(d % x.ndim for d in ([dim] if isinstance(dim, int) else dim))
    return recorder.run(aten.sum.dim_IntList, (x, list(dims), keepdim), {} if dtype is None else {"dtype": dtype})


def cat(recorder: Recorder, tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Without the empty vectors that torch lets pass (a cache before its first tokens)."""
    given = [x for x in tensors if tuple(x.shape) != (0,)] or list(tensors)[:1]
    if len(given) == 1:
        return aten.alias.default(given[0])
    return recorder.run(aten.cat.default, (given, dim % given[0].ndim), {})


def histc(recorder: Recorder, x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:  # noqa: A002
    plain = (recorder.ref(x), int(bins), min, max)
    return recorder.run(aten.histc.default, (x, bins, min, max), {}, name="autoparallel.histc", plain=plain)


CANONICAL: dict[str, Callable[..., Any]] = {
    "view": view, "reshape": view, "_unsafe_view": view, "unsqueeze": unsqueeze, "squeeze": squeeze, "permute": permute,
    "transpose": transpose, "t": t, "expand": expand, "slice": slice_, "select": select, "split": split,
    "split_with_sizes": split, "unbind": unbind, "mean": mean, "sum": sum_, "cat": cat, "histc": histc,
    "_log_softmax": log_softmax, "_log_softmax_backward_data": log_softmax_backward, "nll_loss_forward": nll_forward,
    "nll_loss_backward": nll_backward, "new_zeros": new_factory("zeros"), "new_ones": new_factory("ones"),
    "new_empty": new_factory("zeros"), "new_full": new_factory("full"), "zeros_like": like_factory("zeros"),
    "ones_like": like_factory("ones"), "empty_like": like_factory("zeros"), "full_like": like_factory("full"),
}  # fmt: skip
"""By the operator's name without overload. Each calls operators that are recorded in turn."""
