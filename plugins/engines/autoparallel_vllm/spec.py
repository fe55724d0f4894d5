"""Identity, memory policies by version, and constants of the engine, each with its source."""

from __future__ import annotations

from autoparallel_core.spec.problem import Constant, EngineSpec
from autoparallel_core.spec.serving import Alignment, SchedulerDefaults, ServingPolicy
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.workload import Software
from autoparallel_vllm.budgets import GIB

_ARG_UTILS = "vllm/engine/arg_utils.py, get_batch_defaults"
_MXFP4 = "vllm/model_executor/layers/quantization/mxfp4.py, create_weights; start-up logs of 0.11 and 0.19"

SCHEDULER = (
    SchedulerDefaults(1024, 8192, min_memory_bytes=70 * GIB, not_architectures=("ampere",)),
    SchedulerDefaults(256, 2048),
)
"""API server: large batches on devices of 70 GiB and more, except A100 and its kin (arg_utils.py, PR 17885)."""

SCHEDULER_V0 = (SchedulerDefaults(256, 8192),)
"""Before the V1 engine: 256 sequences, prompts of up to the model's length in one step (8192 assumed)."""


def _policy(since: str | None, until: str | None, source: str, **changes: object) -> ServingPolicy:
    settings: dict[str, object] = {
        "budget": "share_of_device",
        "memory_fraction": 0.9,
        "scheduler": SCHEDULER,
        "page_tokens": 16,
        "layer_split": "inner",
        "pad_vocabulary_to": 64,
        "mixed_cache": "grouped",
        "sparse_latent_scaled": True,
        "fp8_cache_formats": ("nvfp4",),  # ModelOpt checkpoints: hf_quant_config.json with kv_cache_quant_algo FP8
    } | changes
    return ServingPolicy(source=source, since=since, until=until, **settings)  # type: ignore[arg-type]


HOPPER_MXFP4 = (
    Alignment("mxfp4", 256, _MXFP4, side="in", architectures=("hopper",)),
    Alignment("mxfp4", 64, _MXFP4, axis="expert_ffn", architectures=("hopper",)),
)
"""Triton kernels: the contracted width in whole 128-byte rows of packed values."""
HOPPER_MXFP4_V19 = (
    Alignment("mxfp4", 256, _MXFP4, side="in", architectures=("hopper",)),
    Alignment("mxfp4", 128, _MXFP4, axis="expert_ffn", architectures=("hopper",)),
)
BLACKWELL_MXFP4 = (
    Alignment("mxfp4", 256, _MXFP4, axis="expert_ffn", architectures=("blackwell",)),
    Alignment("mxfp4", 256, _MXFP4, axis="hidden", architectures=("blackwell",)),
)
"""TRT-LLM-generated kernels."""
MARLIN_MXFP4 = tuple(
    Alignment("mxfp4", multiple, _MXFP4, axis=axis, architectures=("ampere", "ada"))
    for axis, multiple in (("expert_ffn", 128), ("hidden", 256))
)
MARLIN_MXFP4_ALL = (
    Alignment("mxfp4", 128, _MXFP4, axis="expert_ffn"),
    Alignment("mxfp4", 256, _MXFP4, axis="hidden"),
)

POLICIES = (
    _policy(None, "0.8", "V0 engine: vllm/distributed/utils.py before PR 13839", layer_split="last", mixed_cache="uniform",
            scheduler=SCHEDULER_V0, absorbed_copies="fused"),
    _policy("0.8", "0.10", "vllm/v1/core/kv_cache_utils.py before the hybrid allocator", mixed_cache="uniform"),
    _policy("0.10", "0.11", "vllm/v1/core/kv_cache_utils.py, hybrid allocator; Marlin for MXFP4", alignments=MARLIN_MXFP4_ALL),
    _policy("0.11", "0.17", "vllm/v1/core/kv_cache_utils.py", alignments=HOPPER_MXFP4 + BLACKWELL_MXFP4 + MARLIN_MXFP4),
    _policy("0.17", "0.20", "vllm/v1/core/kv_cache_utils.py", alignments=HOPPER_MXFP4_V19 + BLACKWELL_MXFP4 + MARLIN_MXFP4),
    _policy("0.20", None, "vllm/config/cache.py: gpu_memory_utilization 0.92", memory_fraction=0.92,
            alignments=HOPPER_MXFP4_V19 + BLACKWELL_MXFP4 + MARLIN_MXFP4),
)  # fmt: skip

_RUNS = "published serving runs of vLLM on Hopper and Blackwell"
CONSTANTS = {
    "serving_layer_s": Constant(6.8e-6, "time per layer between kernels that no roofline covers", _RUNS, "fitted"),
    "serving_moe_floor_s": Constant(16e-6, "time of routing and sorting a MoE layer beside its kernels", _RUNS, "fitted"),
    "serving_expert_fixed_s:fp8_block:hopper": Constant(
        45e-6,
        "fixed time of both grouped GEMMs of block-scaled FP8 weights",
        "aiconfigurator tables: Triton experts of 0.14 to 0.24 on H100 and H200, 33 rows, error 12% median",
        "measured",
    ),
    "serving_ttft_steps": Constant(
        3.3, "decode steps until a waiting request is looked at, prefilled and answered", _RUNS, "fitted"
    ),
    "serving_first_wave": Constant(0.13, "share of requests whose prefill queues behind the others'", _RUNS, "fitted"),
    "serving_ttft_offset_s": Constant(8.5e-3, "fixed time to first token", _RUNS, "fitted"),
}

VLLM = EngineSpec(
    name="vllm",
    modes=("inference",),
    default_version="0.33.0",
    oldest_version="0.5.0",
    summary=(
        "vLLM: paged KV cache sized by gpu_memory_utilization; experts sharded either by expert over all ranks or by width; "
        "attention data parallelism for MoE models"
    ),
    software=Software(attention_kernel="flash2", cuda_graph="partial"),
    constants=CONSTANTS,
    moe_grid="tp_or_ep",
    serving=POLICIES,
)

SPACE = Space(cp=(1,))
