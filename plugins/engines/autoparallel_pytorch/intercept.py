"""Functions that are planned as one operator: attention, dropout, products of grouped rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from autoparallel_pytorch.experts import routed_experts

if TYPE_CHECKING:
    from autoparallel_pytorch.recorder import Recorder


@contextmanager
def intercepts(recorder: Recorder) -> Iterator[None]:
    """While active, these functions write one node each."""
    with _Functions(recorder):
        yield


class _Functions(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(self.recorder, *args, **kwargs)
        if func is torch.nn.functional.dropout:
            return _dropout(self.recorder, *args, **kwargs)
        if func is routed_experts:
            return _experts(self.recorder, *args, **kwargs)
        if func in _GROUPED:
            return _grouped_mm(self.recorder, *args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    recorder: Recorder, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    del enable_gqa  # heads say it
    if attn_mask is not None and attn_mask.requires_grad:
        raise NotImplementedError("an attention mask that needs a gradient is not planned")
    flat = query.ndim == 3
    if flat:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        attn_mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
    elif query.ndim != 4:
        raise NotImplementedError(f"attention over {query.ndim - 2} leading dimensions is not planned")
    given = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    out = _Attention.apply(recorder, query, key, value, attn_mask, bool(is_causal), given)
    out = out.squeeze(1) if flat else out
    return _dropout(recorder, out, dropout_p) if dropout_p else out


def _dropout(recorder: Recorder, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
    del inplace
    return input if not training or p == 0 else _Dropout.apply(recorder, input, float(p))


_GROUPED = tuple(
    f for f in (getattr(torch.nn.functional, "grouped_mm", None), getattr(torch, "_grouped_mm", None)) if f is not None
)


def _grouped_mm(
    recorder: Recorder, mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, out_dtype: Any = None,
) -> Any:  # fmt: skip
    if mat_a.ndim != 2 or mat_b.ndim != 3 or offs is None or bias is not None or out_dtype not in (None, mat_a.dtype):
        raise NotImplementedError("grouped_mm is planned for rows [S, K], matrices [E, K, N] and offs, without bias")
    return _Grouped.apply(recorder, mat_a, mat_b, offs)


class _Grouped(torch.autograd.Function):
    """Rows [S, K] sorted by group × a matrix [E, K, N] per group."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, x: Any, w: Any, ends: Any) -> Any:
        out = torch.empty((x.shape[0], w.shape[2]), dtype=x.dtype, device="meta")
        recorder.emit("autoparallel.grouped_mm", (x, w, ends), {}, (out,))
        ctx.save_for_backward(x, w, ends)
        ctx.recorder = recorder
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        x, w, ends = ctx.saved_tensors
        dx, dw = torch.empty(x.shape, dtype=x.dtype, device="meta"), torch.empty(w.shape, dtype=w.dtype, device="meta")
        ctx.recorder.emit("autoparallel.grouped_mm", (grad, w.transpose(1, 2), ends), {}, (dx,))
        ctx.recorder.emit("autoparallel.grouped_outer", (x, grad, ends, int(w.shape[0])), {}, (dw,))
        return None, dx, dw, None


def _experts(
    recorder: Recorder, x: Any, index: Any, weight: Any, gate: Any, up: Any, down: Any, *, activation: str = "silu"
) -> Any:
    return _Experts.apply(recorder, x, index, weight, gate, up, down, activation)


class _Experts(torch.autograd.Function):
    """See ``experts``."""

    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, x: Any, index: Any, weight: Any, gate: Any, up: Any, down: Any, activation: str
    ) -> Any:
        out = torch.empty_like(x)
        recorder.emit("autoparallel.experts", (x, index, weight, gate, up, down, activation), {}, (out,))
        ctx.save_for_backward(x, index, weight, gate, up, down)
        ctx.recorder, ctx.activation = recorder, activation
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        x, index, weight, gate, up, down = ctx.saved_tensors
        grads = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in (x, weight, gate, up, down) if t is not None]
        given = (grad, x, index, weight, gate, up, down, ctx.activation)
        ctx.recorder.emit("autoparallel.experts_backward", given, {}, grads)
        return None, grads[0], None, grads[1], grads[2], None if up is None else grads[3], grads[-1], None


class _Attention(torch.autograd.Function):
    """Softmax attention [B, H, Q, D] × [B, G, K, D] × [B, G, K, E]; keeps its result and the logsumexp of each query."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float) -> Any:
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device="meta")
        lse = torch.empty(q.shape[:-1], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32, device="meta")
        recorder.emit("autoparallel.attention", (q, k, v, mask, causal, scale), {}, (out, lse))
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.recorder, ctx.causal, ctx.scale = recorder, causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        q, k, v, mask, out, lse = ctx.saved_tensors
        grads = tuple(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in (q, k, v))
        ctx.recorder.emit("autoparallel.attention_backward", (grad, q, k, v, mask, out, lse, ctx.causal, ctx.scale), {}, grads)
        return (None, *grads, None, None, None)


class _Dropout(torch.autograd.Function):
    """Keeps the mask of kept elements, one byte each."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, x: Any, p: float) -> Any:
        out, mask = torch.empty_like(x), torch.empty(x.shape, dtype=torch.bool, device="meta")
        recorder.emit(
            "autoparallel.dropout", (x, p, sum(n.op == "autoparallel.dropout" for n in recorder.nodes)), {}, (out, mask)
        )
        ctx.save_for_backward(mask)
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        (mask,) = ctx.saved_tensors
        return None, grad * mask.to(grad.dtype) / (1.0 - ctx.p), None
