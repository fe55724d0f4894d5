"""Launch files of FSDP2 through accelerate: its YAML, a training script that starts, and the scripts around them."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

from autoparallel_core.launch.write import (
    Job,
    array,
    exports,
    group,
    kubernetes_job,
    node_variables,
    script,
    slurm,
    title,
    yaml_scalar,
)
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_fsdp.train_script import TRAIN

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "no"}
LAYERS = {"llama": "LlamaDecoderLayer", "mistral": "MistralDecoderLayer", "mixtral": "MixtralDecoderLayer",
"qwen2": "Qwen2DecoderLayer",
          "qwen3": "Qwen3DecoderLayer", "qwen3_moe": "Qwen3MoeDecoderLayer", "qwen2_moe": "Qwen2MoeDecoderLayer",
          "gemma2": "Gemma2DecoderLayer",
          "gemma3_text": "Gemma3DecoderLayer", "phi3": "Phi3DecoderLayer", "deepseek_v3": "DeepseekV3DecoderLayer",
          "gpt_oss": "GptOssDecoderLayer", "olmo2": "Olmo2DecoderLayer", "falcon": "FalconDecoderLayer",
          "gpt_neox": "GPTNeoXLayer"}  # fmt: skip
"""Decoder layer classes of transformers by model type; for others the wrapping policy finds them itself."""


def launch_files(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Files by name."""
    job = Job.of(problem, "pytorch/pytorch:latest")
    head = title(problem, strategy, options)
    return {
        "accelerate.yaml": accelerate_yaml(problem, strategy, head),
        "train.py": f"{head}\n{TRAIN}",
        "launch.sh": script(
            head, "set -euo pipefail", node_variables(job), _environment(), _arguments(problem, strategy, options), _run()
        ),
        "slurm.sh": slurm(job, head),
        "kubernetes.yaml": kubernetes_job(job, head, ["launch.sh", "accelerate.yaml", "train.py"]),
    }


def _environment() -> str:
    return exports(
        [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "Less fragmentation: gathered parameters come and go.")]
    )


def accelerate_yaml(problem: Problem, s: Strategy, head: str) -> str:
    """The configuration that ``accelerate launch --config_file`` takes."""
    n = problem.cluster.n_gpus
    shard = max(s.shard // s.cp, 1) if s.zero else 1
    alone = s.dp * s.cp == 1
    top: list[tuple[str, Any]] = [
        ("compute_environment", "LOCAL_MACHINE"),
        ("distributed_type", "NO" if alone else "FSDP"),
        ("mixed_precision", PRECISIONS.get(problem.training.precision, "bf16")),
        ("num_machines", problem.cluster.n_nodes),
        ("num_processes", n),
        ("rdzv_backend", "static"),
        ("same_network", True),
        ("main_training_function", "main"),
    ]
    lines = [head, *(f"{k}: {yaml_scalar(v)}" for k, v in top)]
    if alone:
        return "\n".join(lines) + "\n"
    layer = LAYERS.get(problem.arch.model_type)
    full = RECOMPUTE[s.recompute] == "full" and not s.recompute_layers
    fsdp: list[tuple[str, Any, str]] = [
        ("fsdp_version", 2, ""),
        ("fsdp_reshard_after_forward", s.zero == 3, "false keeps gathered parameters until the backward"),
        ("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "each decoder layer is gathered on its own"),
        *([("fsdp_transformer_layer_cls_to_wrap", layer, "")] if layer else []),
        ("fsdp_state_dict_type", "SHARDED_STATE_DICT", ""),
        ("fsdp_cpu_ram_efficient_loading", True, "one rank per node reads the weights"),
        ("fsdp_offload_params", bool(s.offload), "parameters and gradients move with the optimizer"),
        ("fsdp_activation_checkpointing", full, "train.py does the partial kinds"),
    ]
    sizes = (("dp_replicate", s.dp // shard), ("dp_shard", shard), ("tp", s.tp), ("cp", s.cp))
    lines += ["fsdp_config:", *(f"  {k}: {yaml_scalar(v)}" + (f"  # {why}" if why else "") for k, v, why in fsdp)]
    lines += ["parallelism_config:", *(f"  parallelism_config_{name}_size: {size}" for name, size in sizes)]
    if s.cp > 1:
        lines.append("  parallelism_config_cp_comm_strategy: allgather")
    return "\n".join(lines) + "\n"


def _arguments(problem: Problem, s: Strategy, options: Mapping[str, Any]) -> str:
    work = problem.training
    steps = work.global_batch_size // (s.mbs * s.dp)
    recompute = RECOMPUTE[s.recompute]
    partial = recompute == "selective" or bool(s.recompute_layers)
    groups = [
        group(
            f"Batch: {s.mbs} × {steps} steps × {s.dp} data-parallel ranks = {work.global_batch_size} sequences.",
            ("--per_device_train_batch_size", s.mbs), ("--gradient_accumulation_steps", steps), ("--max_seq_length",
            work.seq_len),
        ),
        group("Recompute: done by train.py.", ("--recompute", recompute), ("--recompute_layers", s.recompute_layers or None))
        if partial else group(""),
        group("Experts: spread by transformers' expert-parallel plan.", ("--expert_parallel_size", s.ep if s.ep > 1 else None)),
        group("Activations stay whole between tensor-parallel regions.",
              "--no_sequence_parallel" if s.tp > 1 and not s.sp else None),
    ]  # fmt: skip
    return f"MODEL=${{MODEL:-{options.get('model') or problem.arch.name}}}\n" + array("ARGS", groups)


def _run() -> str:
    return dedent("""\
        HERE=${HERE:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
        accelerate launch --config_file "$HERE/accelerate.yaml" --machine_rank "$NODE_RANK" \\
            --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\
            "$HERE/train.py" --model_name_or_path "$MODEL" "${ARGS[@]}" "$@\"""")
