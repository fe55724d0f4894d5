"""FLOPs that the model itself needs per token: what MFU counts.

Every matrix product once forward and twice backward, attention over the pairs its mask keeps, no recompute
(PaLM, arXiv 2204.02311, appendix B; causal attention counted as half of the square).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from autoparallel_core.ops.kernels import attended_keys
from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.op import Attention, ExpertGemm, Gemm, Op, Scan


def forward_flops_per_token(ops: Iterable[Op], seq_len: int) -> float:
    """FLOPs of one forward pass per token, averaged over a sequence of ``seq_len``."""
    total = 0.0
    for op in ops:
        if isinstance(op, Gemm):
            total += 2.0 * op.k.size * sum(a.size for a in op.n) * op.tokens_fraction
        elif isinstance(op, ExpertGemm):
            total += 2.0 * op.top_k * op.k.size * sum(a.size for a in op.n)
        elif isinstance(op, Attention):
            area = attended_keys(
                seq_len, causal=op.causal, window=op.window, chunk=op.chunk, top_k_keys=op.top_k_keys,
                tokens_per_key=op.tokens_per_key,
            )  # fmt: skip
            total += 2.0 * op.heads.units * (op.heads.width + op.v_width) * area / seq_len
        elif isinstance(op, Scan):
            v, k = op.heads.size, op.key_heads.width
            total += 4.0 * v * k + 2.0 * op.chunk * (v + op.heads.units * k)
    return total


@lru_cache(maxsize=256)
def model_flops_per_token(arch: ModelArch, seq_len: int) -> float:
    """Forward and backward FLOPs per token of the whole model, MTP blocks included when the arch has them."""
    ends = (*arch.prologue.ops, *arch.epilogue.ops * (1 + len(arch.mtp)))
    total = forward_flops_per_token(ends, seq_len) + sum(forward_flops_per_token(x.ops, seq_len) for x in arch.mtp)
    for layer, where in arch.layer_classes():
        total += len(where) * forward_flops_per_token(layer.ops, seq_len)
    return 3.0 * total
