"""Memory beside weights and KV cache, by version: profiled activation peak, non-torch memory, captured graphs.

The engine runs one step of ``max_num_batched_tokens`` with ``max_num_seqs`` sampled sequences before it sizes the
cache, and keeps what that step peaked at. Three moments compete on the last stage, the first two elsewhere:

* inside a layer: three feed-forward widths (gate, up, product) and four hidden states per token;
* the sampler: copies of the logits of every sequence at full vocabulary, and the hidden states that led to them;
* the fused expert kernel's two workspaces are allocated once and add to either.

Axis legend: S strategies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Constants of a version range. Origin: fitted on start-up logs of that range unless the field says otherwise."""

    since: str | None
    until: str | None
    source: str
    logit_bytes: float
    """Bytes per sampled sequence and vocabulary entry: copies in 16 and 32 bit that the sampler's warm-up holds at once."""
    hidden_copies: float
    """Hidden states of the step alive beside the logits."""
    fixed_bytes: float
    """Small buffers of the step."""
    expert_workspace: bool
    """The fused expert kernel's workspaces outlive the step."""
    non_torch_single: float
    """CUDA context and libraries of one GPU, bytes."""
    non_torch_group: float
    """As above plus the buffers of a tensor-parallel group (NCCL, custom and symmetric-memory all-reduce)."""
    non_torch_pipeline: float
    """As above of a stage whose only partners are other stages."""
    graphs_counted: bool
    """Captured graphs are subtracted from the cache."""


BUDGETS = (
    Budget(None, "0.8", "V0 start-up logs of 0.7 and 0.8 on A10G, T4, A100", 4.0, 1.5, 0.0, False,
           0.05 * GIB, 0.2 * GIB, 0.05 * GIB, False),
    Budget("0.8", "0.17", "start-up logs of 0.11.0, 0.15.0 and 0.16.0 on H100", 38.0, 2.18, 0.0, False,
           0.13 * GIB, 2.07 * GIB, 0.07 * GIB, False),
    Budget("0.17", "0.20", "start-up logs of 0.17 to 0.19 on H100", 14.5, 1.5, 0.02 * GIB, True,
           0.25 * GIB, 2.07 * GIB, 0.07 * GIB, False),
    Budget("0.20", None, "as 0.19; graph memory is profiled and reserved by default (vllm/v1/worker/gpu_worker.py)", 14.5, 1.5,
           0.02 * GIB, True, 0.25 * GIB, 2.07 * GIB, 0.07 * GIB, True),
)  # fmt: skip


def budget_for(version: str) -> Budget:
    """The budget whose version range holds ``version``."""
    from autoparallel_core.search.common_rules import parse_version

    v = parse_version(version)
    return next(
        b for b in BUDGETS
        if (b.since is None or v >= parse_version(b.since)) and (b.until is None or v < parse_version(b.until))
    )  # fmt: skip


def reserved_bytes(problem: Problem, batch: StrategyBatch) -> Mapping[str, FloatArray]:
    """Bytes per GPU that are neither weights nor cache, by cause: float64[S]."""
    import numpy as np

    from autoparallel_core.cost.serving_policy import dtype_bytes, model_dtype, scheduler_limits

    b = budget_for(problem.engine_version)
    arch, limits = problem.arch, scheduler_limits(problem)
    width = dtype_bytes(model_dtype(problem))
    tp, pp = batch.tp.astype(np.float64), batch.pp
    ranks = tp * batch.attn_dp
    tokens = float(limits.max_num_batched_tokens)
    hidden = tokens * arch.hidden_size * width
    ffn = tokens * _widest_ffn(problem) / tp * width
    layer = 3 * ffn + (4 + 2 * (pp > 1)) * hidden
    logits = limits.max_num_seqs * arch.vocab_size * b.logit_bytes * (width / 2 if width > 2 else 1.0)
    sampler = logits + b.hidden_copies * hidden + b.fixed_bytes
    experts = _expert_workspaces(problem, tokens, ranks / batch.ep) * width if b.expert_workspace else np.zeros(len(batch))
    last = np.maximum(layer, sampler)
    non_torch = np.where(tp > 1, b.non_torch_group, np.where(pp > 1, b.non_torch_pipeline, b.non_torch_single))
    return {
        "activation: step": layer,
        "activation: sampler@last": last - layer,
        "activation: expert workspaces": experts,
        "non_torch": non_torch,
    }


def _widest_ffn(problem: Problem) -> int:
    """Widest dense feed-forward of the model, 0 when every layer is sparse."""
    return max(
        (a.size for layer in set(problem.arch.layers) for op in layer.ops if isinstance(op, Gemm) for a in op.n if a.name == "ffn"),
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
