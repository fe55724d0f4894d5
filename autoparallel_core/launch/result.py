"""From what an engine's reader found to a :class:`~autoparallel_core.spec.launch.Launch`: the parts all engines share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.launch.flags import Leftover, Parsed
from autoparallel_core.launch.sources import Sources
from autoparallel_core.spec.launch import Launch

KV_DTYPES = {
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_inc": "fp8", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16",
    "float16": "fp16", "half": "fp16",
}  # fmt: skip
"""How engines write cache dtypes that the model of memory knows."""


def said(**fields: Any) -> dict[str, Any]:
    """The fields that something states."""
    return {k: v for k, v in fields.items() if v is not None}


def shared_fields(
    sources: Sources, parsed: Parsed, leftover: Leftover, notes: Sequence[str] = (), unmodelled: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Fields of a Launch that every reader fills alike."""
    undecided = [f"the condition '{c}' is not settled by the files: its first branch was followed" for c in sources.undecided]
    return {
        "unmodelled": (*unmodelled, *leftover.unmodelled),
        "unknown": leftover.unknown,
        "unset": parsed.unset,
        "notes": (*notes, *undecided),
    }


def instances(sources: Sources, copies: int, replicas: int | None, nodes: int) -> int:
    """Independent copies of a serving launch: stated, or the commands of a node times the nodes (or replicas) that run them."""
    stated = sources.variables("INSTANCES")
    if stated is not None and stated.isdigit() and int(stated) > 0:
        return int(stated)
    return copies * (replicas or 1) * nodes


__all__ = ["KV_DTYPES", "Launch", "instances", "said", "shared_fields"]
