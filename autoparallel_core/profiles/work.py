"""What an operator has to do at least: FLOPs, bytes and bytes over a link, by table. Array arguments of R rows.

The counts are those of docs/reference/gpu-data.md, so that fitted efficiencies mean the same as a preset's.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autoparallel_core.profiles.tables import OPERANDS, Array, Table

EXPERT_PAD_TOKENS = 20.0
"""Token slots that a touched expert's last tile leaves empty, on average."""
EXPERT_SKEW = 0.7
"""Share of a batch that routing treats as independent draws, for the number of experts touched."""
BACKWARD_FLOPS = 2.5
"""Backward over forward FLOPs of attention (FlashAttention-2, arXiv 2307.08691, section 3.1)."""


@frozen(eq=False)
class Work:
    """Of R rows: ``flops`` and ``moved_bytes`` as the fitted form counts them, ``least_flops`` that cannot be avoided."""

    flops: Array
    moved_bytes: Array
    least_flops: Array
    operand: np.ndarray
    """Dtype of the dense peak, str[R]."""


def work_of(table: Table) -> Work:
    """Raises KeyError for tables that do not compute."""
    return {"gemm": _gemm, "expert_gemm": _expert, "attention": _attention}[table.name](table)


def _operand(table: Table) -> tuple[np.ndarray, Array]:
    names, code = np.unique(table["dtype"], return_inverse=True)
    pairs = [OPERANDS[d] for d in names.tolist()]
    return np.array([p for p, _ in pairs], dtype=np.str_)[code], np.array([w for _, w in pairs], dtype=np.float64)[code]


def _gemm(t: Table) -> Work:
    m, n, k = t.number("m", "n", "k")
    operand, width = _operand(t)
    io = np.where(width == 4.0, 4.0, 2.0)
    flops = 2.0 * m * n * k
    return Work(flops, n * k * width + io * m * (k + n), flops, operand)


def _expert(t: Table) -> Work:
    tokens, experts, top_k, h, f = t.number("tokens", "experts", "top_k", "hidden", "intermediate")
    operand, width = _operand(t)
    touched = experts * (1.0 - (1.0 - top_k / experts) ** (1.0 + EXPERT_SKEW * (tokens - 1.0)))
    rows = tokens * top_k
    io = np.where(width == 4.0, 4.0, 2.0)
    return Work(
        6.0 * (rows + EXPERT_PAD_TOKENS * touched) * h * f,
        touched * 3.0 * h * f * width + 2.0 * io * rows * (h + f),
        6.0 * rows * h * f,
        operand,
    )


def _attention(t: Table) -> Work:
    b, h, g, d, q, kv = t.number("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len")
    width = _operand(t)[1]
    decode, backward = t["phase"] == "decode", t["phase"] == "backward"
    causal = np.where(decode, q * kv, q * kv - q * q / 2.0)
    flops = 4.0 * b * h * d * causal * np.where(backward, BACKWARD_FLOPS, 1.0)
    io = np.maximum(width, 2.0)
    read = 2.0 * b * kv * g * d * width
    moved = np.where(decode, read, (2.0 * b * q * h * d * io + read) * np.where(backward, 2.0, 1.0))
    operand = np.where(decode & (t["dtype"] == "fp8"), "bf16", t["dtype"])
    return Work(flops, moved, flops, operand)


def link_bytes(kind: str, n_bytes: Array, ranks: Array) -> Array:
    """Bytes that cross a rank's link at least, each direction.

    An all-reduce inside the network sends each byte once; gathers and exchanges move (n−1)/n of the buffer.
    """
    if kind.startswith("all_reduce") or kind == "broadcast":
        return n_bytes
    return n_bytes * (ranks - 1.0) / ranks
