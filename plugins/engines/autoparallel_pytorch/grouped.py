"""Matrix products of rows that are sorted by group (experts), each group with a matrix of its own.

Shapes: x [S, K], w [E, K, N], ends int32[E], where group e has the rows ``ends[e - 1]:ends[e]``. Rows behind the last group
give zeros. A rank that holds some groups' matrices gives zeros for the rows of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


def grouped_mm(x: Tensor, w: Tensor, ends: Tensor, first: Any = 0) -> Tensor:
    """[S, N]; ``w`` holds the groups from ``first`` on."""
    if x.device.type == "meta":
        return x.new_empty(x.shape[0], w.shape[2])
    edges = torch.cat([ends.new_zeros(1), ends])
    if w.shape[0] != ends.shape[0]:
        edges = edges[first + torch.arange(w.shape[0] + 1, device=ends.device)]
        # Rows before the own groups are one more group, with any matrix, and are dropped with those behind.
        out = _product(x, torch.cat([w[:1], w]), edges)
    else:
        out = _product(x, w, ends)
    row = torch.arange(x.shape[0], device=x.device)
    return out.masked_fill(((row < edges[0]) | (row >= edges[-1])).unsqueeze(1), 0.0)


def grouped_outer(x: Tensor, y: Tensor, ends: Tensor, n: int, first: Any = 0) -> Tensor:
    """[n, K, N]: per group from ``first`` on, the product of the transposed rows of x [S, K] with those of y [S, N]."""
    if x.device.type == "meta":
        return x.new_empty(n, x.shape[1], y.shape[1])
    if n == ends.shape[0]:
        return _outer(x, y, ends)
    edges = torch.cat([ends.new_zeros(1), ends])[first + torch.arange(n + 1, device=ends.device)]
    return _outer(x, y, edges)[1:]


def _product(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    if x.dtype != torch.float64:
        return torch.nn.functional.grouped_mm(x, w, offs=ends)
    return sum((_only(x, ends, e) @ w[e] for e in range(w.shape[0])), x.new_zeros(x.shape[0], w.shape[2]))


def _outer(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    if x.dtype != torch.float64:
        return torch.nn.functional.grouped_mm(x.t(), y, offs=ends)
    return torch.stack([_only(x, ends, e).t() @ y for e in range(ends.shape[0])])


def _only(x: Tensor, ends: Tensor, group: int) -> Tensor:
    """The rows of one group, zeros elsewhere."""
    row = torch.arange(x.shape[0], device=x.device)
    inside = (row < ends[group]) if not group else (row < ends[group]) & (row >= ends[group - 1])
    return x.masked_fill(~inside.unsqueeze(1), 0.0)
