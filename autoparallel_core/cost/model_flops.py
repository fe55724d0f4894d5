"""FLOPs that the model itself needs per token: what MFU counts.

Every matrix product once forward and twice backward, attention over the pairs its mask keeps, no recompute
(PaLM, arXiv 2204.02311, appendix B; causal attention counted as half of the square).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from autoparallel_core.ops.kernels import attended_keys
from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.op import Attention, ExpertGemm, Gemm, Op, Scan
from autoparallel_core.spec.problem import Problem


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
def model_flops_per_token(arch: ModelArch, seq_len: int, *, frozen: bool = False) -> float:
    """Forward and backward FLOPs per token of the whole model, MTP blocks included when the arch has them.

    ``frozen``: weights that are not trained need no gradient, a third of their products (LoRA, arXiv 2106.09685).
    """
    total = 0.0
    for ops, times in _parts(arch):
        total += times * 3.0 * forward_flops_per_token(ops, seq_len)
        if frozen:
            total -= times * forward_flops_per_token((op for op in ops if isinstance(op, (Gemm, ExpertGemm))), seq_len)
    return total


def trained_flops_per_token(problem: Problem) -> float:
    """:func:`model_flops_per_token` of a training problem."""
    work = problem.training
    return model_flops_per_token(problem.arch, work.seq_len, frozen=work.task == "lora")


def _parts(arch: ModelArch) -> Iterator[tuple[tuple[Op, ...], int]]:
    yield (*arch.prologue.ops, *arch.epilogue.ops * (1 + len(arch.mtp))), 1
    for block in arch.mtp:
        yield tuple(block.ops), 1
    for layer, where in arch.layer_classes():
        yield tuple(layer.ops), len(where)
