"""A custom operator of torch: ``h[t] = decay · h[t-1] + x[t]``, with its backward as an operator of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("example_scan::scan", mutates_args=(), schema="(Tensor x, Tensor decay) -> Tensor")
def scan(x: Tensor, decay: Tensor) -> Tensor:
    """x [B, S, H] and decay [H] → [B, S, H]."""
    out, h = torch.empty_like(x), torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = decay * h + x[:, t]
        out[:, t] = h
    return out


@torch.library.custom_op(
    "example_scan::scan_backward", mutates_args=(), schema="(Tensor g, Tensor h, Tensor decay) -> (Tensor, Tensor)"
)
def scan_backward(g: Tensor, h: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and decay from that of the result and the result."""
    dx, ddecay, carry = torch.empty_like(g), torch.zeros_like(decay), torch.zeros_like(g[:, 0])
    for t in reversed(range(g.shape[1])):
        carry = g[:, t] + decay * carry
        dx[:, t] = carry
        if t:
            ddecay += (carry * h[:, t - 1]).sum(0)
    return dx, ddecay


@scan.register_fake
def _(x: Tensor, _decay: Tensor) -> Tensor:
    return torch.empty_like(x)


@scan_backward.register_fake
def _(g: Tensor, _h: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(g), torch.empty_like(decay)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    h, decay = ctx.saved_tensors
    dx, ddecay = torch.ops.example_scan.scan_backward(grad, h, decay)
    return dx, ddecay


scan.register_autograd(_backward, setup_context=_keep)


class Mixer(torch.nn.Module):
    """Projections around the recurrence: hidden [B, S, H] → [B, S, H]."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(hidden, width, bias=False), torch.nn.Linear(width, hidden, bias=False)
        self.decay = torch.nn.Parameter(torch.full((width,), 0.9))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.ops.example_scan.scan(self.into(x), self.decay))
