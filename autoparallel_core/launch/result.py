"""From what an engine's reader found to a :class:`~autoparallel_core.spec.launch.Launch`: the parts all engines share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.launch.flags import Leftover, Parsed
from autoparallel_core.launch.found import Found
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


def server_copies(sources: Sources, found: Found, gpus: int, *, spread: bool, ranks: bool = False) -> tuple[int, list[str]]:
    """Independent copies of a server, and a note when there are several: stated, or the commands of a node times the nodes.

    Args:
        sources: the files, for a stated ``INSTANCES``.
        found: the command and its machines.
        gpus: GPUs of one copy.
        spread: one copy spans the nodes that run the command.
        ranks: repetitions of the command are ranks of one copy.
    """
    stated, machines = sources.variables("INSTANCES"), found.machines
    if stated is not None and stated.isdigit() and int(stated) > 0:
        copies = int(stated)
    else:
        nodes = 1 if spread or machines.instances else machines.nodes or 1
        copies = (1 if spread or ranks else found.copies) * (machines.instances or 1) * nodes
    return copies, [f"{copies} independent servers of {gpus} GPUs"] if copies > 1 else []


__all__ = ["KV_DTYPES", "Launch", "said", "server_copies", "shared_fields"]
