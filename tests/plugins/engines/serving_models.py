"""Published models as their config files state them, and serving problems on real GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoparallel_core.cluster import build_cluster
from autoparallel_core.cost.serving_memory import ServingMemory, StageArrays, serving_memory, serving_stages
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.problem import make_problem
from autoparallel_core.search.rules import rules_for, violations
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload

GIB = float(1 << 30)
H100_BYTES = 79.19 * GIB
"""What vLLM prints as the total memory of an H100 80 GB."""

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "tie_word_embeddings": False, "max_position_embeddings": 131072, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
    "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False, "max_position_embeddings": 32768,
    "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
_DEEPSEEK: dict[str, Any] = {
    "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2,
    "n_routed_experts": 64, "routed_scaling_factor": 1.0, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "topk_method": "greedy", "n_group": 1,
    "topk_group": 1, "num_experts_per_tok": 6, "moe_layer_freq": 1, "first_k_dense_replace": 1, "norm_topk_prob": False,
    "scoring_func": "softmax", "hidden_act": "silu", "max_position_embeddings": 163840, "attention_bias": False,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
}  # fmt: skip
DEEPSEEK_V2_LITE = _DEEPSEEK | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
DEEPSEEK_V3 = _DEEPSEEK | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "q_lora_rank": 1536, "n_group": 8,
    "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "num_nextn_predict_layers": 1,
    "quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    },
}  # fmt: skip
QWEN3_235B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 4096,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960, "tie_word_embeddings": False,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "attention_bias": False,
    "quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    },
}  # fmt: skip
GEMMA3_27B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 5376,
    "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
    "head_dim": 128, "sliding_window": 1024, "sliding_window_pattern": 6, "max_position_embeddings": 131072,
    "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "torch_dtype": "bfloat16",
}  # fmt: skip


def problem(
    config: dict[str, Any], engine: str, *, gpu: str = "H100-SXM-80GB", n_gpus: int = 1, version: str | None = None, **work: Any
) -> Problem:
    """One deployment to serve; 1,024 tokens in and 1,024 out unless ``work`` says otherwise."""
    workload = InferenceWorkload(**{"isl": 1024, "osl": 1024} | work)
    arch = build_arch(config, name=str(config["model_type"]), host=host())
    cluster = build_cluster(host().gpu(gpu), n_gpus)
    return make_problem(arch, cluster, workload, engine=engine, engine_version=version, host=host())


def logged(config: dict[str, Any], version: str = "0.19.0", n_gpus: int = 1, **work: Any) -> Problem:
    """The published start-ups of vLLM on H100: utilisation 0.95, 8,192 tokens per step, models limited to 8,192 tokens."""
    stated = {"memory_fraction": 0.95, "max_num_batched_tokens": 8192, "max_model_len": 8192, "device_memory_bytes": H100_BYTES}
    return problem(config, "vllm", version=version, n_gpus=n_gpus, **stated | work)


def sparse(**degrees: int) -> Strategy:
    """A strategy whose experts use every rank of the stage: etp is what ep leaves."""
    s = Strategy(**degrees)
    return Strategy(**{"etp": max(1, s.tp * s.attn_dp // s.ep)} | degrees)


def memory(p: Problem, *strategies: Strategy) -> ServingMemory:
    return serving_memory(p, StrategyBatch.of(strategies), host())


def stages(p: Problem, s: Strategy) -> StageArrays:
    return serving_stages(p, s, host())


def weights_gib(p: Problem, s: Strategy, stage: int = 0) -> float:
    return float(stages(p, s).kind("weights")[0, stage]) / GIB


def broken(p: Problem, s: Strategy) -> dict[str, str]:
    """Rule id → sentence of every rule that the strategy breaks."""
    return {v.rule: v.sentence for v in violations(p, s, rules_for(p, host()))}


def space(p: Problem) -> StrategyBatch:
    """Every legal strategy of the engine's space."""
    found = list(enumerate_space(p, host().search_space(p) or Space(), rules_for(p, host())))
    return StrategyBatch.concat(found)


def has(batch: StrategyBatch, **degrees: int) -> bool:
    mask = np.ones(len(batch), dtype=bool)
    for name, value in degrees.items():
        mask &= batch.columns[name] == value
    return bool(mask.any())
