"""Launch files of DeepSpeed: its JSON, a training script that starts, and the scripts around them."""

from __future__ import annotations

import json
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
)
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_deepspeed.train_script import TRAIN

BUCKET = 500_000_000
"""Elements per reduce and gather, the engine's own default."""


def launch_files(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Files by name."""
    job = Job.of(problem, "deepspeed/deepspeed:latest")
    head = title(problem, strategy, options)
    return {
        "ds_config.json": json.dumps(ds_config(problem, strategy), indent=2) + "\n",
        "train.py": f"{head}\n{TRAIN}",
        "launch.sh": script(
            head, "set -euo pipefail", node_variables(job), _environment(), _arguments(problem, strategy, options), _run()
        ),
        "slurm.sh": slurm(job, head),
        "kubernetes.yaml": kubernetes_job(job, head, ["launch.sh", "ds_config.json", "train.py"]),
    }


def _environment() -> str:
    return exports(
        [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "Less fragmentation: gathered parameters come and go.")]
    )


def ds_config(problem: Problem, s: Strategy) -> dict[str, Any]:
    """The configuration: batch = micro-batch × accumulation × data-parallel ranks."""
    work = problem.training
    zero: dict[str, Any] = {
        "stage": s.zero,
        "overlap_comm": problem.software.dp_overlap,
        "contiguous_gradients": True,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
    }
    if s.zero == 3:
        zero |= {"stage3_gather_16bit_weights_on_model_save": True}
        if s.shard < s.dp * s.cp:
            zero["mics_shard_size"] = s.shard
    if s.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    out: dict[str, Any] = {
        "train_batch_size": work.global_batch_size,
        "train_micro_batch_size_per_gpu": s.mbs,
        "gradient_accumulation_steps": work.global_batch_size // (s.mbs * s.dp),
        "gradient_clipping": 1.0,
        "bf16": {"enabled": work.precision not in {"fp16", "fp32"}},
        "fp16": {"enabled": work.precision == "fp16"},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "wall_clock_breakdown": False,
    }
    if s.tp > 1:
        out["tensor_parallel"] = {"autotp_size": s.tp}
    if s.cp > 1:
        out["sequence_parallel_size"] = s.cp
    if s.ep > 1:
        out["expert_parallel"] = {"enabled": True, "autoep_size": s.ep}
    return out


def _arguments(problem: Problem, s: Strategy, options: Mapping[str, Any]) -> str:
    recompute = RECOMPUTE[s.recompute]
    groups = [
        group("Tokens of one sequence; the batch is in ds_config.json.", ("--max_seq_length", problem.training.seq_len)),
        group("Pipeline stages: train.py builds a PipelineModule.", ("--pipeline_parallel_size", s.pp if s.pp > 1 else None)),
        group("Recompute: done by train.py.", ("--recompute", recompute), ("--recompute_layers", s.recompute_layers or None))
        if s.recompute else group(""),
        group("Activations stay whole between tensor-parallel regions.",
              "--no_sequence_parallel" if s.tp > 1 and not s.sp else None),
    ]  # fmt: skip
    return f"MODEL=${{MODEL:-{options.get('model') or problem.arch.name}}}\n" + array("ARGS", groups)


def _run() -> str:
    return dedent("""\
        HERE=${HERE:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
        torchrun --nnodes "$NNODES" --node_rank "$NODE_RANK" --nproc_per_node "$GPUS_PER_NODE" \\
            --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\
            "$HERE/train.py" --deepspeed_config "$HERE/ds_config.json" --model_name_or_path "$MODEL" "${ARGS[@]}" "$@\"""")
