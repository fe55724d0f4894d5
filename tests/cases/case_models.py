"""Architectures that the cases are about, where the catalogue does not have them: public figures, written out."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 40, "num_key_value_heads": 10, "head_dim": 128, "intermediate_size": 13824, "vocab_size": 32000,
    "tie_word_embeddings": False, "max_position_embeddings": 8192, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
QWEN3_MOE: dict[str, Any] = BASE | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "vocab_size": 151936,
}  # fmt: skip
QWEN3_30B_FP8 = QWEN3_MOE | {"quantization_config": FP8}
QWEN3_235B_FP8 = QWEN3_30B_FP8 | {
    "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64, "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
}  # fmt: skip
LLAMA_33B = BASE | {
    "hidden_size": 6656, "num_hidden_layers": 60, "num_attention_heads": 52, "num_key_value_heads": 52,
    "intermediate_size": 17920,
    "max_position_embeddings": 2048,
}  # fmt: skip
QWEN15_32B = BASE | {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 64, "num_key_value_heads": 8,
    "intermediate_size": 27392, "vocab_size": 152064, "max_position_embeddings": 32768,
}  # fmt: skip
GPT_40B = BASE | {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 8192, "num_hidden_layers": 48,
    "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 32768,
}  # fmt: skip
GALACTICA_30B = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 7168, "num_hidden_layers": 48,
    "num_attention_heads": 56, "ffn_dim": 28672, "vocab_size": 50000, "max_position_embeddings": 2048,
    "word_embed_proj_dim": 7168, "do_layer_norm_before": True, "tie_word_embeddings": True, "torch_dtype": "float16",
}  # fmt: skip


def heads(n: int, kv: int, layers: int = 40) -> dict[str, Any]:
    """A dense model with so many query and key/value heads."""
    return BASE | {"num_attention_heads": n, "num_key_value_heads": kv, "hidden_size": n * 128, "num_hidden_layers": layers}
