"""Legality rules, read from the engine's sources of September 2026 unless a rule says otherwise.

The engine's words: GPUs = tp_size·pp_size; attention dp divides tp_size (attention tp = tp_size / dp); experts split
over tp_size as ep_size by expert and the rest by width. ``tp`` here is the attention's, so tp_size = tp·attn_dp.
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
    speculation_without_pipeline,
    widths_divisible,
)

_ARGS = "python/sglang/srt/server_args.py, check_server_args"
_FP8 = "python/sglang/srt/layers/quantization/fp8.py: block checks; issue 10852 for the shared expert"


def dense_ranks(s: object) -> object:
    """Ranks over which dense widths are cut: all of tp_size, moe_dense_tp_size being unset."""
    return s.tp * s.attn_dp  # type: ignore[attr-defined]


RULES = (
    instances_fit(_ARGS),
    instances_fill_nodes(f"{_ARGS}: (tp_size·pp_size) % nnodes == 0", rule_id="tp pp % nodes"),
    columns_at_one(("cp",), "attention context parallelism is not modelled for this engine; use cp 1", _ARGS, rule_id="cp = 1"),
    heads_divisible("python/sglang/srt/models: num_heads % attention tp", modes=SERVING),
    norm_groups_divisible("python/sglang/srt/models/bailing_moe_linear.py: group_norm_size % tp == 0", modes=SERVING),
    kv_heads_divisible_or_replicated("python/sglang/srt/models: K replicated when attention tp > K", modes=SERVING),
    expert_grid("python/sglang/srt/layers/moe: moe_tp = tp_size / ep_size", since="0.5"),
    expert_grid(
        "server_args.py before 0.5: --enable-ep-moe sets ep_size = tp_size", all_or_nothing=True, rule_id="ep or etp", until="0.5"
    ),
    ep_needs_experts(_ARGS, modes=SERVING),
    experts_divisible("python/sglang/srt/layers/moe/fused_moe_triton/layer.py", modes=SERVING),
    attention_dp_needs_experts("docs, data parallelism attention: for MoE models; dense replicas are independent servers"),
    stages_at_most_layers("python/sglang/srt/distributed/utils.py, get_pp_indices", modes=SERVING),
    speculation_without_pipeline(f"{_ARGS}: pp_size > 1 turns off the overlap schedule and forbids speculation"),
    widths_divisible("python/sglang/srt/distributed/utils.py, divide()", dense=dense_ranks),
    quantised_width_aligned(_FP8, {"ffn": dense_ranks}, padded_experts=("mxfp4",), modes=SERVING),
    asked_precision_aligned(_FP8, dense=dense_ranks),
    groups_divisible("mamba_groups", "Mamba groups", "python/sglang/srt/layers/attention/mamba", one_is_shared=True,
                     rule_id="mamba groups % tp"),
    groups_divisible("mamba_heads", "Mamba heads", "python/sglang/srt/layers/attention/mamba", rule_id="mamba heads % tp"),
    groups_divisible("linear_key_heads", "linear-attention key heads", "python/sglang/srt/models/qwen3_next.py",
                     rule_id="linear key heads % tp"),
    groups_divisible("linear_value_heads", "linear-attention value heads", "python/sglang/srt/models/qwen3_next.py",
                     rule_id="linear value heads % tp"),
)  # fmt: skip
