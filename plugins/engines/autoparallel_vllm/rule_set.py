"""Legality rules, read from the engine's sources of August and September 2026 unless a rule says otherwise.

The engine's words: GPUs = tp·pp per replica times dp; with expert parallelism on, ep = tp·dp and nothing else.
Replicas of a MoE model that exchange tokens are this tool's attention dp; independent replicas are its dp.
"""

from __future__ import annotations

from autoparallel_core.search.common_rules import (
    ep_needs_experts,
    experts_divisible,
    heads_divisible,
    kv_heads_divisible_or_replicated,
    norm_groups_divisible,
    quantised_width_aligned,
    stages_at_most_layers,
)
from autoparallel_core.search.serving_rules import (
    SERVING,
    asked_precision_aligned,
    attention_dp_needs_experts,
    columns_at_one,
    expert_grid,
    groups_divisible,
    instances_fill_nodes,
    instances_fit,
    widths_divisible,
)

_PARALLEL = "vllm/config/parallel.py, ParallelConfig"
_MODEL = "vllm/config/model.py, verify_with_parallel_config"
_FP8 = "vllm/model_executor/layers/quantization/utils/fp8_utils.py, validate_fp8_block_shape"

RULES = (
    instances_fit(_PARALLEL),
    instances_fill_nodes("multi-node launch: --nnodes × GPUs per node is the world of one replica"),
    columns_at_one(("cp",), "prefill context parallelism is not modelled for this engine; use cp 1", _PARALLEL, rule_id="cp = 1"),
    heads_divisible(_MODEL, modes=SERVING),
    norm_groups_divisible("vllm/model_executor/models/bailing_moe_linear.py: group_norm_size % tp == 0", modes=SERVING),
    kv_heads_divisible_or_replicated("vllm/config/model.py, get_num_kv_heads: max(1, K // tp) heads per GPU", modes=SERVING),
    expert_grid(f"{_PARALLEL}: enable_expert_parallel sets ep = tp·dp", all_or_nothing=True),
    ep_needs_experts(_PARALLEL, modes=SERVING),
    experts_divisible("vllm/model_executor/layers/fused_moe/layer.py: experts % ep without redundant experts", modes=SERVING),
    columns_at_one(
        ("attn_dp", "ep"),
        "expert parallelism and data-parallel attention came with 0.8; use attn_dp 1 and ep 1",
        "release notes of 0.8.0: --enable-expert-parallel, --data-parallel-size",
        rule_id="no ep before 0.8",
        until="0.8",
    ),
    attention_dp_needs_experts("vllm docs, data parallel deployment: dense replicas are independent"),
    stages_at_most_layers("vllm/distributed/utils.py, get_pp_indices", modes=SERVING),
    widths_divisible("vllm/distributed/utils.py, divide()"),
    quantised_width_aligned(f"{_FP8}; vllm/model_executor/layers/quantization/utils/marlin_utils.py",
                            padded_experts=("mxfp4",), modes=SERVING),
    asked_precision_aligned(f"{_FP8}; vllm/model_executor/layers/quantization/utils/marlin_utils.py"),
    groups_divisible("mamba_groups", "Mamba groups", "vllm/model_executor/layers/mamba/mamba_mixer2.py (PR 13660)",
                     one_is_shared=True, rule_id="mamba groups % tp"),
    groups_divisible("mamba_heads", "Mamba heads", "vllm/model_executor/layers/mamba/mamba_mixer2.py",
                     rule_id="mamba heads % tp"),
    groups_divisible("linear_key_heads", "linear-attention key heads", "vllm/distributed/utils.py, divide()",
                     rule_id="linear key heads % tp"),
    groups_divisible("linear_value_heads", "linear-attention value heads", "vllm/distributed/utils.py, divide()",
                     rule_id="linear value heads % tp"),
)  # fmt: skip
