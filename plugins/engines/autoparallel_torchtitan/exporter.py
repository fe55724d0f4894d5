"""Launch files of torchtitan: a Python configuration (since 0.3) or TOML (0.2), and the scripts that start it."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

from autoparallel_core.launch.write import Job, comment, exports, kubernetes_job, node_variables, script, slurm, title
from autoparallel_core.search.common_rules import parse_version
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_torchtitan.rule_set import layers_per_stage

PYTHON_SINCE = "0.3.0"
MODULES = {"llama": "llama3", "qwen3": "qwen3", "qwen3_moe": "qwen3", "deepseek_v2": "deepseek_v3", "deepseek_v3": "deepseek_v3",
           "gpt_oss": "gpt_oss"}  # fmt: skip
"""Model type of the config file → torchtitan's module."""
FLAVORS = {
    ("llama3", 16, 2048): "1B", ("llama3", 28, 3072): "3B", ("llama3", 32, 4096): "8B", ("llama3", 80, 8192): "70B",
    ("llama3", 126, 16384): "405B", ("qwen3", 28, 1024): "0.6B", ("qwen3", 28, 2048): "1.7B", ("qwen3", 36, 2560): "4B",
    ("qwen3", 36, 4096): "8B", ("qwen3", 40, 5120): "14B", ("qwen3", 64, 5120): "32B", ("qwen3", 48, 2048): "30B-A3B",
    ("qwen3", 94, 4096): "235B-A22B", ("deepseek_v3", 27, 2048): "16B", ("deepseek_v3", 60, 5120): "236B",
    ("deepseek_v3", 61, 7168): "671B", ("gpt_oss", 24, 2880): "20b", ("gpt_oss", 36, 2880): "120b",
}  # fmt: skip
"""By module, layers and hidden size (torchtitan/models/*/__init__.py of 0.3)."""
SCHEDULES = {("1f1b", False): "1F1B", ("1f1b", True): "Interleaved1F1B", ("gpipe", False): "GPipe", ("gpipe", True): "LoopedBFS",
             ("zero_bubble", True): "InterleavedZeroBubble", ("dualpipe_v", True): "DualPipeV"}  # fmt: skip


def launch_files(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Files by name."""
    job = Job.of(problem, "pytorch/pytorch:latest")
    head = title(problem, strategy, options)
    new = parse_version(problem.engine_version) >= parse_version(PYTHON_SINCE)
    name, text = ("plan.py", python_config(problem, strategy, head)) if new else ("plan.toml", toml(problem, strategy, head))
    arguments = "--module plan --config plan" if new else '--job.config_file "$HERE/plan.toml"'
    return {
        name: text,
        "launch.sh": script(head, "set -euo pipefail", node_variables(job), _environment(), _run(arguments)),
        "slurm.sh": slurm(job, head),
        "kubernetes.yaml": kubernetes_job(job, head, ["launch.sh", name]),
    }


def _environment() -> str:
    return exports(
        [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "Less fragmentation, as torchtitan's own script sets it.")]
    )


def _run(arguments: str) -> str:
    return dedent(f"""\
        # The plan lies beside this script. COMM_MODE=fake_backend checks it without GPUs.
        HERE=${{HERE:-$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)}}
        export PYTHONPATH="$HERE:${{PYTHONPATH:-}}"

        torchrun --nnodes "$NNODES" --node_rank "$NODE_RANK" --nproc_per_node "$GPUS_PER_NODE" \\
            --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" --local-ranks-filter 0 --role rank --tee 3 \\
            -m torchtitan.train {arguments} "$@\"""")


# --- settings -------------------------------------------------------------------------------------------------


def parallelism(problem: Problem, s: Strategy, *, etp: bool) -> dict[str, Any]:
    """The section of degrees."""
    sharded = s.zero >= 2
    shard = max(s.shard // s.cp, 1) if sharded else 1
    out: dict[str, Any] = {
        "data_parallel_replicate_degree": s.dp // shard,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": s.tp,
        "context_parallel_degree": s.cp,
        "pipeline_parallel_degree": s.pp,
    }
    if sharded:
        out["fsdp_reshard_after_forward"] = "always" if s.zero == 3 else "never"
    if problem.arch.num_experts:
        out["expert_parallel_degree"] = s.ep
        if etp:
            out["expert_tensor_parallel_degree"] = s.etp
    if s.tp > 1 and not s.sp:
        out["enable_sequence_parallel"] = False
    if s.pp > 1:
        out["pipeline_parallel_schedule"] = schedule(problem, s)
        out["pipeline_parallel_microbatch_size"] = s.mbs
        if s.vpp > 1 and (per := layers_per_stage(problem.arch.num_layers, s.pp * s.vpp)) is not None:
            out["pipeline_parallel_layers_per_stage"] = per
    return out


def schedule(problem: Problem, s: Strategy) -> str:
    """The schedule's name for this number of stages per rank."""
    kind = problem.software.pipeline_schedule
    return SCHEDULES.get((kind, s.vpp > 1)) or SCHEDULES["1f1b", s.vpp > 1]


def training(problem: Problem, s: Strategy) -> dict[str, Any]:
    """The section of batch and lengths. In a pipeline the whole step is one local batch, so that it drains once."""
    work = problem.training
    return {
        "local_batch_size": work.global_batch_size // s.dp if s.pp > 1 else s.mbs,
        "global_batch_size": work.global_batch_size,
        "seq_len": work.seq_len,
        "steps": 1000,
        "mixed_precision_param": "float32" if work.precision == "fp32" else "bfloat16",
    }


def model_of(problem: Problem) -> tuple[str, str]:
    """Module and flavor of torchtitan; the flavor is the model's name where torchtitan has none of this size."""
    module = MODULES.get(problem.arch.model_type, problem.arch.model_type or "llama3")
    return module, FLAVORS.get((module, problem.arch.num_layers, problem.arch.hidden_size), problem.arch.name)


def toml(problem: Problem, s: Strategy, head: str) -> str:
    """Configuration of 0.2."""
    module, flavor = model_of(problem)
    mode = RECOMPUTE[s.recompute]
    sections: dict[str, dict[str, Any]] = {
        "job": {"description": f"{problem.arch.name} {s}", "dump_folder": "./outputs"},
        "model": {"name": module, "flavor": flavor, "hf_assets_path": _assets(problem)},
        "training": training(problem, s) | {"dataset": "c4"},
        "parallelism": parallelism(problem, s, etp=True),
        "activation_checkpoint": {"mode": mode} | ({"selective_ac_option": "op"} if mode == "selective" else {}),
        "compile": {"enable": problem.software.elementwise == "compiled", "components": ["model", "loss"]},
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "lr_scheduler": {"warmup_steps": 200},
        "metrics": {"log_freq": 10},
        "checkpoint": {"enable": False},
    }
    if problem.training.precision in {"fp8", "mxfp8"}:
        sections["model"]["converters"] = ["float8" if problem.training.precision == "fp8" else "mx"]
    lines = [head]
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{k} = {_toml_value(v)}" for k, v in values.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    import json

    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _assets(problem: Problem) -> str:
    """Where torchtitan's scripts/download_hf_assets.py puts a repository: under its name without the owner."""
    return f"./assets/hf/{problem.arch.name.rsplit('/', 1)[-1]}"


def python_config(problem: Problem, s: Strategy, head: str) -> str:
    """Configuration of 0.3: a function that returns a Trainer.Config."""
    module, flavor = model_of(problem)
    known = (module, problem.arch.num_layers, problem.arch.hidden_size) in FLAVORS
    missing = (
        ""
        if known
        else "\n".join(comment(f"torchtitan has no flavor of this size: add {flavor!r} to its {module} module.")) + "\n"
    )
    recompute = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}[RECOMPUTE[s.recompute]]
    sections = {
        "TrainingConfig": training(problem, s) | {"disable_cuda_graphs": problem.software.cuda_graph == "none"},
        "ParallelismConfig": parallelism(problem, s, etp=False),
        "CompileConfig": {"enable": problem.software.elementwise == "compiled"},
    }
    if problem.software.tp_overlap and s.tp > 1:
        sections["CompileConfig"]["enable_async_tensor_parallel"] = True
    keywords = {"TrainingConfig": "training", "ParallelismConfig": "parallelism", "CompileConfig": "compile"}
    calls = "\n".join(f"        {keywords[name]}={_call(name, values)}," for name, values in sections.items())
    imports, convert = _converters(problem)
    return f'''{head}
"""torchtitan configuration of one plan: --module plan --config plan."""

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{module} import model_registry
from torchtitan.trainer import Trainer
{imports}

def plan() -> Trainer.Config:
{_indented(missing)}    model_spec = model_registry({flavor!r}{convert})
    return Trainer.Config(
        model_spec=model_spec,
        hf_assets_path="{_assets(problem)}",
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        ),
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        checkpoint=CheckpointManager.Config(enable=False),
        activation_checkpoint={recompute},
{calls}
    )
'''


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _call(name: str, values: Mapping[str, Any]) -> str:
    inner = "".join(f"\n            {k}={v!r}," for k, v in values.items())
    return f"{name}({inner}\n        )"


def _converters(problem: Problem) -> tuple[str, str]:
    kind = {"fp8": "Float8LinearConverter", "mxfp8": "MXFP8LinearConverter", "nvfp4": "NVFP4LinearConverter"}.get(
        problem.training.precision
    )
    if kind is None:
        return "", ""
    compiled = problem.software.elementwise == "compiled"
    return (
        f"from torchtitan.components.quantization import {kind}\n",
        f", converters=[{kind}.Config(model_compile_enabled={compiled})]",
    )
