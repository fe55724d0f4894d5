"""Memory beside weights and KV cache: what a step of max_num_tokens peaks at, and the engine's own buffers.

Axis legend: S strategies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoparallel_core.spec.op import ExpertGemm, Gemm

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import StrategyBatch

    FloatArray = NDArray[np.float64]

GIB = float(1 << 30)

NON_TORCH_SINGLE = 0.5 * GIB
"""CUDA context and libraries, one GPU. Assumed."""
NON_TORCH_GROUP = 2.2 * GIB
"""As above with NCCL and one-shot all-reduce workspaces. Assumed from engines with the same collectives."""
LOGIT_BYTES = 8.0
"""Per sampled sequence and vocabulary entry: logits in 32 bit and their copy in the sampler."""


def reserved_bytes(problem: Problem, batch: StrategyBatch) -> Mapping[str, FloatArray]:
    """Bytes per GPU that are neither weights nor cache, by cause: float64[S].

    The engine runs a step of max_num_tokens before it sizes the cache and subtracts its peak
    (tensorrt_llm/_torch/pyexecutor/_util.py, KvCacheCreator): three dense widths and four hidden states per token, or
    the dispatched tokens of the widest expert layer; logits of max_batch_size sequences on the last stage.
    """
    import numpy as np

    from autoparallel_core.cost.serving_policy import model_dtype, scheduler_limits
    from autoparallel_core.spec.dtypes import dtype_bytes

    arch, limits = problem.arch, scheduler_limits(problem)
    width = dtype_bytes(model_dtype(problem))
    tp, etp = batch.tp.astype(np.float64), batch.tp * batch.attn_dp / batch.ep
    tokens = float(limits.max_num_batched_tokens)
    hidden = tokens * arch.hidden_size * width
    dense, routed = np.zeros(len(batch)), np.zeros(len(batch))
    for layer in set(arch.layers):
        for op in layer.ops:
            if isinstance(op, Gemm):
                dense = np.maximum(dense, sum(a.size for a in op.n if a.name == "ffn") / tp)
            elif isinstance(op, ExpertGemm):
                visits = tokens * op.top_k / batch.ep * (batch.attn_dp if op.experts.units else 1)
                local = sum(a.size for a in op.n) / (etp if op.n[0].name == "expert_ffn" else 1.0)
                routed = np.maximum(routed, visits * (local + op.k.size) * width)
    layer_peak = np.maximum(1.5 * tokens * dense * width, routed) + 4 * hidden
    logits = np.where(batch.pp > 0, limits.max_num_seqs * arch.vocab_size * LOGIT_BYTES, 0.0)
    return {
        "activation: step": layer_peak,
        "activation: logits@last": logits,
        "non_torch": np.where(tp * batch.attn_dp * batch.pp > 1, NON_TORCH_GROUP, NON_TORCH_SINGLE),
    }
