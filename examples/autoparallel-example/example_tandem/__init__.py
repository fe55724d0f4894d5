"""Model plugin: *tandem*, an invented decoder with one key/value head and a local window on every second layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import attention_block, mlp_block
from autoparallel_core.spec.config import ConfigView

MODEL_TYPE = "tandem"
RECOGNISED = 10
"""Specificity of a claim by model type; a claim by the shape of the fields would be 0."""


@hookimpl
def parse_family(config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
    """What the type implies when the file is silent."""
    if config.model_type != MODEL_TYPE:
        return None
    return {"defaults": {"mlp_ratio": 4}, "traits": {"tied": True}}


@hookimpl
def parse_mixer(config: ConfigView, layer: int) -> Block | None:
    """Multi-query attention; odd layers see ``local_window`` tokens."""
    if config.model_type != MODEL_TYPE:
        return None
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden % heads:
        raise SpecError(f"{config.name}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    window = config.size("local_window")
    return attention_block(
        hidden=hidden,
        heads=heads,
        kv_heads=1,
        head_dim=hidden // heads,
        kind="mqa",
        window=window if layer % 2 else None,
        specificity=RECOGNISED,
    )


@hookimpl
def parse_ffn(config: ConfigView) -> Block | None:
    """Two matrices, no gate, in every layer."""
    if config.model_type != MODEL_TYPE:
        return None
    hidden = config.size("hidden_size")
    return mlp_block(hidden=hidden, intermediate=hidden * config.size("mlp_ratio"), gated=False, specificity=RECOGNISED)


@hookimpl
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Models known by name."""
    return {
        "example-org/Tandem-7B": {
            "model_type": MODEL_TYPE,
            "hidden_size": 4096,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "local_window": 1024,
            "vocab_size": 65536,
            "max_position_embeddings": 32768,
        }
    }
