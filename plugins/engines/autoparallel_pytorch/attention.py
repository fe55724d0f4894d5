"""Softmax attention that keeps its logsumexp: the device's fused kernel where it has one, plain products elsewhere.

Shapes: q [B, H, Q, D], k [B, G, K, D], v [B, G, K, E] with H a multiple of G; result [B, H, Q, E], logsumexp [B, H, Q].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

aten = torch.ops.aten


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Result and logsumexp."""
    k, v = _spread(k, q.shape[1]), _spread(v, q.shape[1])
    if _flash(q, v, mask):
        out = aten._scaled_dot_product_flash_attention.default(q, k, v, 0.0, causal, False, scale=scale)
        return out[0], out[1]
    if _flash_cpu(q, v):
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(
            q, k, v, 0.0, causal, attn_mask=_bias(mask, q, k), scale=scale
        )
        return out, lse
    scores = _scores(q, k, mask, causal, scale)
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - lse.unsqueeze(-1)).to(v.dtype) @ v, lse


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    groups, heads = k.shape[1], q.shape[1]
    k, v = _spread(k, heads), _spread(v, heads)
    if _flash(q, v, mask):
        none = torch.zeros((), dtype=torch.int64, device=q.device)
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward.default(
            grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, none, none, scale=scale
        )
    elif _flash_cpu(q, v):
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            grad, q, k, v, out, lse, 0.0, causal, attn_mask=_bias(mask, q, k), scale=scale
        )
    else:
        p = torch.exp(_scores(q, k, mask, causal, scale) - lse.unsqueeze(-1)).to(v.dtype)
        dv = p.transpose(-2, -1) @ grad
        dp = grad @ v.transpose(-2, -1)
        ds = p * (dp - (grad * out).sum(-1, keepdim=True)) * scale
        dq, dk = ds @ k, ds.transpose(-2, -1) @ q
    return dq, _gather(dk, groups), _gather(dv, groups)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = q @ k.transpose(-2, -1) * scale
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if causal:
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores


def _bias(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """A mask as numbers to add, with all four dimensions."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, float("-inf"))
    return mask.to(q.dtype).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _flash(q: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    half = q.dtype in (torch.float16, torch.bfloat16)
    return q.device.type == "cuda" and mask is None and half and q.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0


def _flash_cpu(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _spread(x: Tensor, heads: int) -> Tensor:
    """One head of keys or values per head of queries."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _gather(grad: Tensor, groups: int) -> Tensor:
    """Sum over the query heads that share keys and values."""
    if grad.shape[1] == groups:
        return grad
    return grad.unflatten(1, (groups, grad.shape[1] // groups)).sum(2)
