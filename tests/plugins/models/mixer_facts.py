"""Architecture facts of published models, and short ways to read what the plugins make of a config."""

from __future__ import annotations

from typing import Any

from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.ops.params import parameter_counts
from autoparallel_core.spec.arch import CacheTensor, ModelArch

Config = dict[str, Any]

DEEPSEEK_V3: Config = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "hidden_act": "silu", "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
}  # fmt: skip
DEEPSEEK_V32: Config = DEEPSEEK_V3 | {
    "model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
}  # fmt: skip
DEEPSEEK_V4_FLASH: Config = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64,
    "num_key_value_heads": 1, "head_dim": 512, "vocab_size": 129280, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6, "num_hash_layers": 3, "q_lora_rank": 1024,
    "o_lora_rank": 1024, "o_groups": 8, "qk_rope_head_dim": 64, "index_n_heads": 64, "index_head_dim": 128,
    "index_topk": 512, "sliding_window": 128, "hc_mult": 4, "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 0, *([4, 128] * 20), 4, 0],
}  # fmt: skip
QWEN3_NEXT_80B: Config = {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936, "intermediate_size": 5120,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
KIMI_LINEAR_48B: Config = {
    "model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32,
    "num_key_value_heads": 32, "vocab_size": 163840, "intermediate_size": 9216, "moe_intermediate_size": 1024,
    "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [i for i in range(1, 28) if i not in {4, 8, 12, 16, 20, 24, 27}],
        "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
    },
}  # fmt: skip
MINIMAX_M1: Config = {
    "model_type": "minimax_m1", "hidden_size": 6144, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064, "intermediate_size": 9216, "num_local_experts": 32,
    "num_experts_per_tok": 2, "shared_intermediate_size": 0, "attn_type_list": ([0] * 7 + [1]) * 10, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
NEMOTRON_3_NANO: Config = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 131072, "intermediate_size": 1856,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "mamba_num_heads": 64,
    "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "chunk_size": 128, "use_conv_bias": True,
    "mamba_ssm_cache_dtype": "float32", "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "mlp_hidden_act": "relu2",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
JAMBA: Config = {
    "model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 65536, "intermediate_size": 14336, "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2,
    "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_dt_rank": 256, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def read(config: Config, **changes: Any) -> ModelArch:
    """The model of a config with some fields changed; a change to ``...`` drops the field."""
    merged = {k: v for k, v in (config | changes).items() if v is not ...}
    return build_arch(merged, name="model", host=host())


def counts(arch: ModelArch) -> dict[str, Any]:
    return parameter_counts(arch)


def per_token(arch: ModelArch, layer: int) -> dict[str, CacheTensor]:
    """Tensors that a layer caches per token, by name."""
    return {c.name: c for b in arch.layers[layer].blocks for c in b.cache_per_token}


def per_sequence(arch: ModelArch, layer: int) -> dict[str, CacheTensor]:
    return {c.name: c for b in arch.layers[layer].blocks for c in b.cache_per_sequence}
