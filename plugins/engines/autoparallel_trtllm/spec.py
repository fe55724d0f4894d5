"""Identity, memory policies by version, and constants of the engine, each with its source."""

from __future__ import annotations

from autoparallel_core.spec.problem import Constant, EngineSpec
from autoparallel_core.spec.serving import Alignment, SchedulerDefaults, ServingPolicy
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.workload import Software

_CONFIG = "tensorrt_llm/llmapi/llm_args.py, KvCacheConfig: free_gpu_memory_fraction"

SCHEDULER = (SchedulerDefaults(2048, 8192),)
"""max_batch_size and max_num_tokens (llm_args.py)."""

_MXFP4 = "tensorrt_llm/_torch/modules/fused_moe/quantization.py: alignment of W4A16 and W4A8 MXFP4 weights"
MXFP4 = (
    Alignment("mxfp4", 128, _MXFP4, axis="expert_ffn"),
    Alignment("mxfp4", 128, _MXFP4, axis="hidden"),
)

POLICIES = (
    ServingPolicy(
        source=_CONFIG,
        budget="share_after_weights",
        memory_fraction=0.9,
        scheduler=SCHEDULER,
        page_tokens=32,
        layer_split="first",
        pad_vocabulary_to=1,
        towers_sharded=False,
        mixed_cache="uniform",
        alignments=MXFP4,
        fp8_cache_formats=("fp8", "nvfp4"),  # ModelOpt checkpoints: hf_quant_config.json with kv_cache_quant_algo FP8
        throughput_attention_dp=True,  # docs, performance overview: enable_attention_dp for MoE models
        benchmark_requests=1500,  # the same page: 1,000 to 3,000 requests per point
    ),
)

_RUNS = "published serving runs of TensorRT-LLM on Hopper and Blackwell"
CONSTANTS = {
    "serving_layer_s": Constant(0.0, "time per layer between kernels that no roofline covers", _RUNS, "fitted"),
    "serving_moe_floor_s": Constant(2.3e-6, "time of routing and sorting a MoE layer beside its kernels", _RUNS, "fitted"),
    "serving_ttft_steps": Constant(
        6.1, "decode steps until a waiting request is looked at, prefilled and answered", _RUNS, "fitted"
    ),
    "serving_first_wave": Constant(0.095, "share of requests whose prefill queues behind the others'", _RUNS, "fitted"),
    "serving_ttft_offset_s": Constant(13e-3, "fixed time to first token", _RUNS, "fitted"),
    "serving_expert_fixed_s:mxfp4:hopper": Constant(
        72e-6,
        "fixed time of both grouped GEMMs of MXFP4 weights in 16 bit",
        "aiconfigurator tables: torch flow of 1.0 to 1.3 at up to 4 tokens, 68 to 85 µs",
        "measured",
    ),
    "serving_reserved_output": Constant(
        1.0, "cache held for the whole output at admission", "default scheduler policy GUARANTEED_NO_EVICT", "vendor"
    ),
}

TRTLLM = EngineSpec(
    name="trtllm",
    modes=("inference",),
    default_version="1.2.1",
    oldest_version="1.0.0",
    summary=(
        "TensorRT-LLM: KV cache takes a fraction of the memory left after loading; experts by expert and by width at once; "
        "attention data parallelism replicates attention and dense layers on every rank"
    ),
    software=Software(attention_kernel="fused", cuda_graph="full_iteration"),
    constants=CONSTANTS,
    moe_grid="folded",
    serving=POLICIES,
)

SPACE = Space(cp=(1,))
