"""Memory beside weights and KV cache, by version: profiled activation peak, non-torch memory, captured graphs.

The engine runs one step of ``max_num_batched_tokens`` with ``max_num_seqs`` sampled sequences before it sizes the
cache, and keeps what that step peaked at:

* inside a layer: three feed-forward widths (gate, up, product) and four hidden states per token;
* in the sampler (last stage): copies of the logits of every sequence at full vocabulary, and hidden states;
* the two workspaces of the fused expert kernel, part of the layer's peak or, once they are kept, on top of either.

Axis legend: S strategies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from autoparallel_core.spec.op import ExpertGemm, Gemm

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import StrategyBatch

    FloatArray = NDArray[np.float64]

GIB = float(1 << 30)


@frozen
class Budget:
    """Constants of a version range, fitted on start-up logs of that range unless the field says otherwise."""

    since: str | None
    until: str | None
    source: str
    logit_bytes: float
    """Per sampled sequence and vocabulary entry beside the logits in the model's dtype: fp32 logits, probabilities,
    sorted copies; 0 where the sampler's warm-up is not profiled."""
    hidden_copies: float
    """Hidden states of the step alive beside the logits."""
    expert_workspace: Literal["transient", "kept"]
    """Whether the fused expert kernel's workspaces outlive the layer."""
    non_torch_single: float
    """CUDA context and libraries of one GPU, bytes."""
    graphs_counted: bool
    """Captured graphs are subtracted from the cache."""
    fixed_bytes: float = 0.0
    """Small buffers of the step."""


NON_TORCH_GROUP = 2.07 * GIB
"""Context, libraries and the buffers of a tensor-parallel group over a scale-up fabric (NCCL, custom and
symmetric-memory all-reduce). Logs of 0.19 on H100, tp 2; from tp 4 on, one step's hidden states more."""
NON_TORCH_GROUP_PCIE = 0.2 * GIB
"""As above where GPUs have no scale-up fabric and those buffers are not allocated. Logs of 0.8 on RTX 3090."""
NON_TORCH_PIPELINE = 0.07 * GIB
"""One GPU per stage: the sampler's and compiler's libraries load after the profile. Logs of 0.19, pp 2 and 4."""
GRAPH_BYTES_PER_LAYER = 0.024 * GIB
"""Captured graphs of all batch sizes per layer: median of logs of 0.19 on H100 (0.017 to 0.05)."""

BUDGETS = (
    Budget(None, "0.8", "V0 start-up logs of 0.7 on A10G and T4", 0.0, 0.0, "transient", 0.05 * GIB, graphs_counted=False),
    Budget("0.8", "0.17", "start-up logs of 0.11.0, 0.15.0 and 0.16.0 on H100", 36.0, 2.18, "transient", 0.13 * GIB,
           graphs_counted=False),
    Budget("0.17", "0.18", "start-up log of 0.17.0 on H100", 12.5, 1.5, "kept", 0.13 * GIB, graphs_counted=False,
           fixed_bytes=0.02 * GIB),
    Budget("0.18", "0.20", "start-up logs of 0.18.0 and 0.19.0 on H100", 12.5, 1.5, "kept", 0.25 * GIB, graphs_counted=False,
           fixed_bytes=0.02 * GIB),
    Budget("0.20", None, "as 0.19; graphs are estimated and reserved by default (vllm/v1/worker/gpu_worker.py)", 12.5, 1.5,
           "kept", 0.25 * GIB, graphs_counted=True, fixed_bytes=0.02 * GIB),
)  # fmt: skip

PIXEL_BYTES_PER_TOKEN = 28 * 28 * 3 * 2.0
"""Pixels behind one token of an image, in 16 bit: 2×2 merged patches of 14×14. The profiled step holds the images, and
the embeddings they became, of as many tokens as a step has."""

CHUNKED_ABOVE_V0 = 32768
"""Before V1, contexts longer than this run with chunked prefill of 2048 tokens; shorter ones prefill a whole prompt at
once (vllm/engine/arg_utils.py of 0.7)."""
EXPERT_CHUNK = 32768
"""Tokens per call of the fused expert kernel (VLLM_FUSED_MOE_CHUNK_SIZE)."""


def budget_for(version: str) -> Budget:
    """The budget whose version range holds ``version``."""
    from autoparallel_core.search.common_rules import parse_version

    v = parse_version(version)
    return next(
        b for b in BUDGETS
        if (b.since is None or v >= parse_version(b.since)) and (b.until is None or v < parse_version(b.until))
    )  # fmt: skip


def step_tokens(problem: Problem) -> float:
    """Tokens of the profiled step: ``max_num_batched_tokens``, stated or the version's default."""
    from autoparallel_core.cost.serving_policy import scheduler_limits

    work = problem.inference
    if work.max_num_batched_tokens is None and budget_for(problem.engine_version).until == "0.8":
        length = work.max_model_len or problem.arch.max_position_embeddings or CHUNKED_ABOVE_V0
        return 2048.0 if length > CHUNKED_ABOVE_V0 else float(max(length, 2048))
    return float(scheduler_limits(problem).max_num_batched_tokens)


def reserved_bytes(problem: Problem, batch: StrategyBatch) -> Mapping[str, FloatArray]:
    """Bytes per GPU that are neither weights nor cache, by cause: float64[S]."""
    import numpy as np

    from autoparallel_core.cost.serving_policy import model_dtype, scheduler_limits
    from autoparallel_core.spec.dtypes import dtype_bytes

    b = budget_for(problem.engine_version)
    arch, tokens = problem.arch, step_tokens(problem)
    width = dtype_bytes(model_dtype(problem))
    tp, pp = batch.tp.astype(np.float64), batch.pp
    hidden = tokens * arch.hidden_size * width
    ffn = tokens * _widest_ffn(problem) / tp * width
    layer = 3 * ffn + (4 + 2 * (pp > 1)) * hidden
    experts = _expert_workspaces(problem, min(tokens, EXPERT_CHUNK), tp * batch.attn_dp / batch.ep) * width
    kept = experts if b.expert_workspace == "kept" else np.zeros(len(batch))
    layer = layer if b.expert_workspace == "kept" else np.maximum(layer, 4 * hidden + experts)
    vision = tokens * (arch.hidden_size * width + PIXEL_BYTES_PER_TOKEN) if arch.towers else 0.0
    sampler = scheduler_limits(problem).max_num_seqs * arch.vocab_size * (b.logit_bytes + width) if b.logit_bytes else 0.0
    sampler += b.hidden_copies * hidden + b.fixed_bytes
    causes = {
        "activation: step": layer,
        "activation: sampler@last": np.maximum(sampler - layer, 0.0),
        "activation: expert workspaces": kept,
        "activation: encoder inputs and outputs@first": np.full(len(batch), vision),
        "non_torch": _non_torch(problem, batch, b, hidden),
    }
    if b.graphs_counted:
        causes["cuda_graph"] = GRAPH_BYTES_PER_LAYER * arch.num_layers / pp
    return causes


def _non_torch(problem: Problem, batch: StrategyBatch, b: Budget, hidden: float) -> FloatArray:
    import numpy as np

    if problem.cluster.gpu.scale_up_domain > 1:
        group = NON_TORCH_GROUP + np.where(batch.tp >= 4, hidden, 0.0)
    else:
        group = np.full(len(batch), NON_TORCH_GROUP_PCIE)
    alone = np.where(batch.pp > 1, NON_TORCH_PIPELINE, b.non_torch_single)
    return np.where(batch.tp * batch.attn_dp > 1, group, alone)


def _widest_ffn(problem: Problem) -> int:
    """Widest dense feed-forward of the model, 0 when every layer is sparse."""
    return max(
        (
            a.size
            for layer in set(problem.arch.layers)
            for op in layer.ops
            if isinstance(op, Gemm)
            for a in op.n
            if a.name == "ffn"
        ),
        default=0,
    )


def _expert_workspaces(problem: Problem, tokens: float, etp: FloatArray) -> FloatArray:
    """Elements of the two workspaces: token visits × (max(ffn, h) + max(2·ffn, h)).

    Source: vllm/model_executor/layers/fused_moe/fused_moe.py, TritonExperts.workspace_shapes. Formats whose kernels
    bring their own buffers (MXFP4) have none.
    """
    import numpy as np

    most = np.zeros(len(etp))
    for layer in set(problem.arch.layers):
        for op in layer.ops:
            if isinstance(op, ExpertGemm) and op.n and op.n[0].name == "expert_ffn":
                if any(w.format == "mxfp4" for w in op.weights):
                    continue
                ffn, h = op.n[0].size / etp, float(op.k.size)
                most = np.maximum(most, tokens * op.top_k * (np.maximum(ffn, h) + np.maximum(len(op.n) * ffn, h)))
    return most
