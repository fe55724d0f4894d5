"""Identity, memory policies by version, and constants of the engine, each with its source."""

from __future__ import annotations

from autoparallel_core.spec.problem import Constant, EngineSpec
from autoparallel_core.spec.serving import Alignment, SchedulerDefaults, ServingPolicy
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.workload import Software

GIB = float(1 << 30)

_ARGS = "python/sglang/srt/server_args.py, _handle_gpu_memory_settings"
_POOL = "python/sglang/srt/model_executor/model_runner.py, profile_max_num_token"

SCHEDULER = (
    SchedulerDefaults(2048, 16384, min_memory_bytes=160 * GIB),
    SchedulerDefaults(2048, 8192, min_memory_bytes=60 * GIB),
    SchedulerDefaults(1024, 4096, min_memory_bytes=35 * GIB),
    SchedulerDefaults(1024, 2048),
)
"""Chunked-prefill size by device memory; running requests are bounded by the token pool, the figure here is a ceiling."""

_MXFP4 = "python/sglang/srt/layers/quantization/mxfp4.py, create_weights"
MXFP4 = (
    Alignment("mxfp4", 256, _MXFP4, axis="expert_ffn", architectures=("blackwell", "blackwell ultra")),
    Alignment("mxfp4", 256, _MXFP4, axis="hidden", architectures=("blackwell", "blackwell ultra")),
    Alignment("mxfp4", 256, _MXFP4, side="in", architectures=("hopper",)),
    Alignment("mxfp4", 64, _MXFP4, axis="expert_ffn", architectures=("hopper",)),
)

WINDOW_POOLS = ("llama4", "llama4_text", "gpt_oss", "mimo_v2_flash", "step3p5", "gemma4", "gemma4_text", "deepseek_v4")
"""Models whose window layers have a pool of their own (configs/model_config.py, is_hybrid_swa_model); others keep all tokens."""

POLICIES = (
    ServingPolicy(
        source=f"{_ARGS}; {_POOL}",
        budget="share_of_free",
        memory_fraction=None,
        scheduler=SCHEDULER,
        page_tokens=1,
        layer_split="trailing",
        pad_vocabulary_to=64,
        spread_over_attention_dp=("mlp", "shared_experts", "head"),
        mixed_cache="pools",
        mixed_cache_models=WINDOW_POOLS,
        window_pool_ratio=0.8,
        state_pool_ratio=0.9,
        sparse_latent_scaled=True,
        alignments=MXFP4,
        notes=("moe_dense_tp_size and enable_dp_lm_head at their defaults: dense layers and head use all ranks",),
    ),
)

_RUNS = "published serving runs of SGLang on Hopper and Blackwell"
CONSTANTS = {
    "serving_layer_s": Constant(0.0, "time per layer between kernels that no roofline covers", _RUNS, "fitted"),
    "serving_moe_floor_s": Constant(34e-6, "time of routing and sorting a MoE layer beside its kernels", _RUNS, "fitted"),
    "serving_ttft_steps": Constant(
        31.0, "decode steps until a waiting request is looked at (runs set scheduler_recv_interval 10 to 30)", _RUNS, "fitted"
    ),
    "serving_first_wave": Constant(0.19, "share of requests whose prefill queues behind the others'", _RUNS, "fitted"),
    "serving_ttft_offset_s": Constant(0.0, "fixed time to first token", _RUNS, "fitted"),
}

SGLANG = EngineSpec(
    name="sglang",
    modes=("inference",),
    default_version="0.5.23",
    oldest_version="0.4.0",
    summary=(
        "SGLang: token-granular KV pool sized by mem_fraction_static; experts by expert and by width at once; "
        "attention data parallelism inside the tensor-parallel group"
    ),
    software=Software(attention_kernel="flash2", cuda_graph="partial"),
    constants=CONSTANTS,
    moe_grid="folded",
    default_for=("inference",),
    serving=POLICIES,
)

SPACE = Space(cp=(1,))
