"""Legality rules, read from the engine's sources of 2026 unless a rule says otherwise.

The engine's words: GPUs = tp_size·pp_size; tp_size = moe_tp·moe_ep; attention dp replaces the attention's tensor
parallelism by as many data-parallel ranks (dp = tp_size), so that tp is 1 where attention dp is above 1.
"""

from __future__ import annotations

from autoparallel_core.search.common_rules import (
    ep_needs_experts,
    experts_divisible,
    heads_divisible,
    kv_heads_divisible_or_replicated,
    norm_groups_divisible,
    quantised_width_aligned,
    simple,
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

_MAPPING = "tensorrt_llm/mapping.py, Mapping"
_DOC = "docs, features/parallel-strategy.md"

RULES = (
    simple(
        "NVIDIA GPUs only",
        lambda p, _s: p.cluster.gpu.vendor.lower() == "amd",
        lambda p, _s: f"TensorRT-LLM runs on NVIDIA GPUs, and {p.cluster.gpu.name} is of {p.cluster.gpu.vendor.upper()}",
        "docs, legacy/reference/support-matrix.md: hardware",
        modes=SERVING,
    ),
    instances_fit(f"{_MAPPING}: world_size = tp·pp·cp"),
    instances_fill_nodes(f"{_MAPPING}: gpus_per_node"),
    columns_at_one(("cp",), "context parallelism is not modelled for this engine; use cp 1", _MAPPING, rule_id="cp = 1"),
    simple(
        "attention dp or tp",
        lambda _p, s: (s.attn_dp > 1) & (s.tp > 1),
        lambda _p, s: (
            f"attention dp {s.attn_dp} with tp {s.tp}: attention is either replicated on every rank or tensor parallel; "
            f"tp 1 attention dp {s.tp * s.attn_dp} would do"
        ),
        f"{_DOC}: attention dp has dp = tp_size",
        modes=SERVING,
    ),
    heads_divisible("tensorrt_llm/_torch/modules/attention.py", modes=SERVING),
    norm_groups_divisible("a group norm over heads is not reduced across ranks", modes=SERVING),
    kv_heads_divisible_or_replicated("tensorrt_llm/_torch/modules/attention.py: K replicated when K < tp", modes=SERVING),
    expert_grid(f"{_MAPPING}: tp = moe_tp·moe_ep"),
    ep_needs_experts(_MAPPING, modes=SERVING),
    experts_divisible("tensorrt_llm/_torch/modules/fused_moe/interface.py: experts / moe_ep per rank", modes=SERVING),
    attention_dp_needs_experts(f"{_DOC}: attention dp shares experts"),
    stages_at_most_layers(f"{_MAPPING}: pp_layers by tensor_split", modes=SERVING),
    widths_divisible("tensorrt_llm/_torch/modules/linear.py"),
    quantised_width_aligned("tensorrt_llm/_torch/modules/linear.py: scales per block and rank",
                            padded_experts=("mxfp4",), modes=SERVING),
    asked_precision_aligned("tensorrt_llm/_torch/modules/linear.py: scales per block and rank"),
    groups_divisible("mamba_groups", "Mamba groups", "tensorrt_llm/_torch/modules/mamba/mamba2_mixer.py",
                     rule_id="mamba groups % tp"),
    groups_divisible("mamba_heads", "Mamba heads", "tensorrt_llm/_torch/modules/mamba/mamba2_mixer.py",
                     rule_id="mamba heads % tp"),
    groups_divisible("linear_key_heads", "linear-attention key heads", "tensorrt_llm/_torch/models/modeling_qwen3_next.py",
                     rule_id="linear key heads % tp"),
    groups_divisible("linear_value_heads", "linear-attention value heads", "tensorrt_llm/_torch/models/modeling_qwen3_next.py",
                     rule_id="linear value heads % tp"),
)  # fmt: skip
