"""The settings of torchtitan by their dotted names, out of TOML (0.2), command-line overrides and Python configurations."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoparallel_core.launch.batch import Machines, whole
from autoparallel_core.launch.sources import Sources

SECTIONS = {
    "ParallelismConfig": "parallelism", "TrainingConfig": "training", "CompileConfig": "compile",
    "Parallelism": "parallelism", "Training": "training", "Compile": "compile",
}  # fmt: skip
"""Configuration classes → section."""
RECOMPUTE = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
TELLTALE = (
    "parallelism.tensor_parallel_degree", "parallelism.data_parallel_shard_degree", "parallelism.pipeline_parallel_degree",
    "parallelism.context_parallel_degree", "parallelism.expert_parallel_degree", "parallelism.data_parallel_replicate_degree",
)  # fmt: skip
PRICED = frozenset({
    *TELLTALE, "parallelism.fsdp_reshard_after_forward", "parallelism.enable_sequence_parallel",
    "parallelism.disable_loss_parallel",
    "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_layers_per_stage",
    "parallelism.pipeline_parallel_microbatch_size", "parallelism.expert_tensor_parallel_degree",
    "training.local_batch_size", "training.global_batch_size", "training.seq_len", "training.steps", "training.dtype",
    "training.mixed_precision_param", "training.mixed_precision_reduce", "training.disable_cuda_graphs", "training.dataset",
    "training.max_norm", "training.gc_freq", "training.num_tokens_per_microbatch_per_dp_rank",
    "training.num_tokens_per_train_step",
    "training.max_context_length", "parallelism.num_pp_microbatches", "activation_checkpoint.mode",
    "activation_checkpoint.selective_ac_option", "compile.enable", "compile.components", "model.name", "model.flavor",
    "model.hf_assets_path", "model.tokenizer_path", "model.converters", "parallelism.context_parallel_load_balancer",
    "parallelism.context_parallel_rotate_method",
    "parallelism.spmd_backend", "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "training.dataset_path", "training.debug_moe_force_load_balance", "training.data_parallel_replicate_degree",
})  # fmt: skip
"""Settings that the reader uses, or that change nothing it predicts."""
QUIET = ("job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "comm", "validation", "validator", "debug",
         "experimental",
         "fault_tolerance", "float8", "quantize", "mx", "dataloader", "tokenizer", "loss", "profiler", "hf_assets_path",
         "dump_folder",
         "memory_estimation", "print_args", "module", "config")  # fmt: skip
"""Sections without influence here."""


def settings(sources: Sources) -> tuple[dict[str, Any], str, Machines] | None:
    """Dotted name → value, the form in words, and the machines; None when nothing here is torchtitan's."""
    values: dict[str, Any] = {}
    form = ""
    machines = Machines()
    for name, tree in sources.python.items():
        found = dict(_from_python(tree))
        if any(t in found for t in TELLTALE):
            values.update(found)
            form = f"torchtitan configuration {name}"
    for name, document in sources.data.items():
        if sources.kinds.get(name) == "toml" and isinstance(document, Mapping):
            found = dict(_flat(document))
            if any(t in found for t in TELLTALE):
                values.update(found)
                form = f"torchtitan TOML {name}"
    for run in sources.runs:
        flags = _from_words(run.words)
        ours = any(t in flags for t in TELLTALE) or any("torchtitan.train" in w for w in run.words)
        if ours or (values and any(w.rsplit("/", 1)[-1] in {"run_train.sh", "train.py"} for w in run.words)):
            values.update(flags)
            per_node = whole(run.environment.get("NGPU", ""))
            machines = machines.over(run.split(len(run.words) - 1)[1].over(Machines(gpus_per_node=per_node)))
            form = form or "torchtitan flags"
    return (values, form, machines) if any(t in values for t in TELLTALE) else None


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _from_words(words: Sequence[str]) -> dict[str, Any]:
    """``--section.key value``, ``--section.key=value``, switches ``--section.key`` and ``--section.no-key``."""
    out: dict[str, Any] = {}
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.startswith("--") or "." not in word.split("=", 1)[0]:
            continue
        name, eq, value = word[2:].partition("=")
        section, _, key = name.replace("-", "_").rpartition(".")
        if eq:
            out[f"{section}.{key}"] = _plain(value)
        elif i < len(words) and not words[i].startswith("--"):
            out[f"{section}.{key}"] = _plain(words[i])
            i += 1
        elif key.startswith("no_"):
            out[f"{section}.{key[3:]}"] = False
        else:
            out[f"{section}.{key}"] = True
    return out


def _plain(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "True": True, "False": False}.get(text, text)


def _from_python(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Keyword arguments of the configuration classes, and assignments such as ``config.training.seq_len = 8192``."""
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _value(node.value, names)
            if value is not ...:
                names[node.targets[0].id] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _call(node, names)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            value = _value(node.value, names)
            if isinstance(target.value, ast.Attribute) and value is not ...:
                yield f"{target.value.attr}.{target.attr}", value
        elif isinstance(node, ast.keyword) and node.arg == "activation_checkpoint" and _value(node.value, names) is None:
            yield "activation_checkpoint.mode", "none"


def _call(node: ast.Call, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr == "Config" and isinstance(called.value, ast.Name):
        if called.value.id in RECOMPUTE:
            yield "activation_checkpoint.mode", RECOMPUTE[called.value.id]
        if called.value.id.startswith(("Float8", "MXFP8", "NVFP4")):
            yield "model.converters", [called.value.id]
        return
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    if name == "model_registry" and node.args and (flavor := _value(node.args[0], names)) is not ...:
        yield "model.flavor", flavor
    if name in SECTIONS:
        for keyword in node.keywords:
            value = _value(keyword.value, names)
            if keyword.arg and value is not ...:
                yield f"{SECTIONS[name]}.{keyword.arg}", value


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A plain value, or ``...`` when the expression is something else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, ...)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...
