"""Models found by architecture search: every layer has its own shape (nemotron-nas, DeciLM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.config import ConfigView


@hookimpl
def parse_family(config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
    if "block_configs" in config:
        return {"traits": {"mixer": "listed"}}
    if "num_key_value_heads_per_layer" in config:
        return {"traits": {"mixer": "listed", "standard_ffn": True}}
    return None


@hookimpl
def parse_mixer(config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
    from autoparallel_nas import blocks

    if "block_configs" in config:
        return blocks.mixer(config, layer)
    return blocks.listed_heads_mixer(config, layer) if "num_key_value_heads_per_layer" in config else None


@hookimpl
def parse_ffn(config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
    from autoparallel_nas import blocks

    return blocks.ffn(config, layer) if "block_configs" in config else None
