"""A mixture of experts without capacity as one operator: tokens go to their experts, and nothing is dropped.

Every token's result depends on that token alone, so tokens may be cut although the rows that the experts work on are sorted
over all of them: each rank sorts its own. Ranks may hold a part of the experts (they give zeros for the others' tokens), or
a part of each expert's width.

Shapes: x [T, M], index int[T, k], weight [T, k], gate [E, I, M], up [E, I, M] or None, down [E, M, I] → [T, M]. Without
``up``, ``gate`` may hold both, one after the other [E, 2·I, M], or there is no gate. The backward computes the experts'
inner activations again; nothing but the inputs is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import did_you_mean
from autoparallel_pytorch.grouped import grouped_mm, grouped_outer

if TYPE_CHECKING:
    from torch import Tensor

aten = torch.ops.aten

ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "silu": (torch.nn.functional.silu, aten.silu_backward.default),
    "relu": (torch.nn.functional.relu, lambda g, x: aten.threshold_backward.default(g, x, 0.0)),
    "gelu": (torch.nn.functional.gelu, aten.gelu_backward.default),
    "gelu_tanh": (
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        lambda g, x: aten.gelu_backward.default(g, x, approximate="tanh"),
    ),
}
"""Name → the function, and its gradient from (gradient, input)."""


def routed_experts(
    x: Tensor, index: Tensor, weight: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, activation: str = "silu"
) -> Tensor:
    """``sum over j of weight[t, j] · down[e] (act(gate[e] x[t]) · up[e] x[t])`` with e = index[t, j].

    A planned module may call it: tokens, experts and, with separate ``gate`` and ``up``, the width may be sharded.

    Raises:
        SpecError: the activation is unknown, or the shapes do not fit.
    """
    if activation not in ACTIVATIONS:
        raise SpecError(f"unknown activation '{activation}' of routed_experts; {did_you_mean(activation, list(ACTIVATIONS))}")
    width = gate.shape[1]
    if width != down.shape[2] and (up is not None or width != 2 * down.shape[2]):
        raise SpecError(f"experts of gate {tuple(gate.shape)} and down {tuple(down.shape)} do not fit")
    if has_torch_function_variadic(x, index, weight, gate, up, down):
        return handle_torch_function(  # type: ignore[no-any-return]
            routed_experts, (x, index, weight, gate, down), x, index, weight, gate, up, down, activation=activation
        )
    return _Experts.apply(x, index, weight, gate, up, down, activation)  # type: ignore[no-any-return]


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, index: Any, weight: Any, gate: Any, up: Any, down: Any, activation: str) -> Any:
        ctx.save_for_backward(x, index, weight, gate, up, down)
        ctx.activation = activation
        return experts(x, index, weight, gate, up, down, activation)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        x, index, weight, gate, up, down = ctx.saved_tensors
        found = experts_backward(grad, x, index, weight, gate, up, down, ctx.activation)
        dx, dweight, dgate = found[:3]
        return dx, None, dweight, dgate, found[3] if len(found) == 5 else None, found[-1], None


def experts(
    x: Tensor, index: Tensor, weight: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, activation: str, first: Any = 0
) -> Tensor:
    """On pieces: the matrices are those of the experts from ``first`` on."""
    if x.device.type == "meta":
        return torch.empty_like(x)
    k = index.shape[1]
    order, ends = _sorted(index, gate.shape[0], first)
    inner, _, _ = _inner(x[order // k], gate, up, ends, ACTIVATIONS[activation][0], down.shape[2])
    rows = grouped_mm(inner, down.transpose(1, 2), ends) * weight.reshape(-1)[order].unsqueeze(1)
    return _back(rows, order, k).to(x.dtype)


def experts_backward(
    grad: Tensor, x: Tensor, index: Tensor, weight: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, activation: str,
    first: Any = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, weight, gate, up (where there is one) and down."""
    if x.device.type == "meta":
        return tuple(torch.empty_like(t) for t in (x, weight, gate, up, down) if t is not None)
    k, n, width = index.shape[1], gate.shape[0], down.shape[2]
    act, act_backward = ACTIVATIONS[activation]
    order, ends = _sorted(index, n, first)
    rows, given = x[order // k], grad[order // k]
    inner, g, u = _inner(rows, gate, up, ends, act, width)
    back = grouped_mm(given, down, ends)
    share = weight.reshape(-1)[order].unsqueeze(1)
    dweight = torch.zeros_like(weight).reshape(-1).index_put((order,), (back * inner).sum(1).to(weight.dtype)).view_as(weight)
    ddown = grouped_outer((given * share).to(x.dtype), inner, ends, n)
    dinner = (back * share).to(x.dtype)
    dpre = [act_backward(dinner, g)] if u is None else [act_backward(dinner * u, g), dinner * act(g)]
    if up is None:
        whole = torch.cat(dpre, 1)
        return _back(grouped_mm(whole, gate, ends), order, k), dweight, grouped_outer(whole, rows, ends, n), ddown
    drows = grouped_mm(dpre[0], gate, ends) + grouped_mm(dpre[1], up, ends)
    dgate, dup = (grouped_outer(d, rows, ends, n) for d in dpre)
    return _back(drows, order, k), dweight, dgate, dup, ddown


def _sorted(index: Tensor, n: int, first: Any) -> tuple[Tensor, Tensor]:
    """The order of the (token, choice) pairs by expert, those of other ranks' experts last, and where each expert's end."""
    own = index.reshape(-1) - first
    own = own.masked_fill((own < 0) | (own >= n), n)
    order = torch.argsort(own, stable=True)
    ends = torch.searchsorted(own[order], torch.arange(1, n + 1, device=index.device, dtype=own.dtype))
    return order, ends.to(torch.int32)


def _inner(rows: Tensor, gate: Tensor, up: Tensor | None, ends: Tensor, act: Any, width: int) -> tuple[Tensor, Tensor, Any]:
    """Gated rows, and what went into the gate."""
    g = grouped_mm(rows, gate.transpose(1, 2), ends)
    u = None if up is None else grouped_mm(rows, up.transpose(1, 2), ends)
    if up is None and gate.shape[1] == 2 * width:
        g, u = g.split(width, 1)
    return (act(g) if u is None else act(g) * u), g, u


def _back(rows: Tensor, order: Tensor, k: int) -> Tensor:
    """Sorted rows [T·k, M] → the sum of each token's."""
    return torch.zeros_like(rows).index_put((order,), rows).unflatten(0, (-1, k)).sum(1)
