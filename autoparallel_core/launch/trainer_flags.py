"""Flags of training scripts around the transformers library: lengths, batch, precision, recomputation.

Scripts differ; these are the spellings of its ``TrainingArguments`` and of the trainers built on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoparallel_core.launch.flags import Option, Parsed, options, parse
from autoparallel_core.launch.found import Found
from autoparallel_core.launch.sources import Sources

TABLE: tuple[Option, ...] = (
    *options(
        "int",
        "--per_device_train_batch_size|--per-device-train-batch-size|--micro_batch_size|--micro-batch-size|--train_batch_size=mbs",
        "--gradient_accumulation_steps|--gradient-accumulation-steps=accumulation",
        "--max_seq_length|--max-seq-length|--max_length|--max-length|--model_max_length|--cutoff_len|--block_size|--seq_length|"
        "--seq-length|--seq_len|--seq-len|--sequence_length|--sequence_len=seq",
        "--tensor_parallel_size|--tp_size=tp", "--expert_parallel_size|--ep_size=ep", "--recompute_layers",
        "--global_batch_size|--global-batch-size=gbs", "--pipeline_parallel_size|--num_stages=pp",
    ),
    *options(
        "str", "--model_name_or_path|--model-name-or-path|--model_id|--model|--base_model|--pretrained_model_name_or_path=model",
        "--fsdp", "--fsdp_config", "--recompute",
        "--fsdp_transformer_layer_cls_to_wrap", "--attn_implementation=attention",
        "--finetuning_type|--train_type|--tuner_type=tuner",
    ),
    *options("on", "--no_sequence_parallel"),
)  # fmt: skip
_ADAPTERS = ("--use_peft", "--use_lora", "--lora")
_QUANTISED = ("--load_in_4bit", "--load_in_8bit", "--use_4bit_quantization", "--use_8bit_quantization")
_SWITCHES = ("--gradient_checkpointing", "--gradient-checkpointing", "--bf16", "--fp16", "--tf32", *_ADAPTERS, *_QUANTISED)
"""Given alone or with ``True`` or ``False``."""
PER_NODE = ("machine-rank", "node-rank", "local-rank", "main-process-ip", "main-process-port", "master-addr", "master-port")


def switches(words: Sequence[str]) -> dict[str, bool]:
    """The boolean flags: ``--bf16``, ``--bf16 True``, ``--bf16=false``."""
    out: dict[str, bool] = {}
    for i, word in enumerate(words):
        name, eq, value = word.partition("=")
        if name not in _SWITCHES:
            continue
        after = value if eq else words[i + 1] if i + 1 < len(words) else ""
        out[name.lstrip("-").replace("-", "_")] = after.lower() not in {"false", "0", "no"}
    return out


def trainer_arguments(words: Sequence[str], program: str, *more: str) -> Parsed:
    """What the script's own flags say; unknown ones are the script's business. ``more``: text flags of one engine."""
    kept = [w for w in words if w.split("=", 1)[0] not in _SWITCHES]
    parsed = parse(kept, (*TABLE, *options("str", *more)), program=program)
    return Parsed({**parsed.values, **switches(words)}, (), parsed.unset)


def task_of(arguments: Parsed) -> str | None:
    """``lora`` where the script trains adapters beside frozen weights; None: it does not say."""
    switched = any(arguments.get(name.lstrip("-")) for name in _ADAPTERS)
    return "lora" if switched or arguments.get("tuner") == "lora" else None


def quantised_weights(arguments: Parsed) -> Iterator[str]:
    """That frozen weights are held in 4 or 8 bit, which no training price here knows."""
    for name in _QUANTISED:
        if arguments.get(name.lstrip("-")):
            yield f"{name} holds the frozen weights in fewer bits and unpacks them for every product; they are priced in 16 bit"


def script_of(words: Sequence[str]) -> int | None:
    """Index of the training script (or ``-m module``) among the words of a launcher."""
    for i, word in enumerate(words):
        if word.endswith(".py") and i > 0:
            return i
        if word in {"-m", "--module"} and i + 1 < len(words) and i > 0 and not words[i + 1].startswith("torch.distributed"):
            return i + 1
    return None


def named_document(sources: Sources, name: Any) -> Mapping[str, Any] | None:
    """The JSON or YAML file that a flag names, when it is among the files."""
    document = sources.data.get(str(name).rsplit("/", 1)[-1]) if name else None
    return document if isinstance(document, Mapping) else None


def launcher_options(found: Found) -> dict[str, str]:
    """``--key value`` options of the launcher in front of the script, without dashes, underscores as written."""
    out: dict[str, str] = {}
    words = found.before
    for i, word in enumerate(words):
        name, eq, value = word.partition("=")
        if name.startswith("--"):
            after = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("-") else ""
            out[name[2:].replace("-", "_")] = value if eq else after
    return out


def whole_or_none(value: Any) -> int | None:
    """A whole number out of a configuration; ``"auto"`` and absent ones are None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
