"""State-space hybrids: Nemotron-H and Nemotron-3, Jamba, Zamba2, Bamba, Granite-4, Falcon-H1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Block, Layer
from autoparallel_core.spec.config import ConfigView

HYBRID: dict[str, Any] = {"mixer": "hybrid"}
JAMBA_DEFAULTS: dict[str, Any] = {
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "attn_layer_period": 8, "attn_layer_offset": 4,
    "expert_layer_period": 2, "expert_layer_offset": 1,
}  # fmt: skip
SHAPE_SPECIFICITY = 5
TYPES = frozenset({"nemotron_h", "nemotron_h_puzzle", "jamba", "zamba2", "bamba", "granitemoehybrid", "falcon_h1"})


def family(config: ConfigView) -> str | None:
    """The model type that this plugin reads a config as: its own, or Nemotron-H for another with a pattern of sub-layers."""
    if config.model_type in TYPES:
        return "nemotron_h" if config.model_type.startswith("nemotron_h") else config.model_type
    return "nemotron_h" if "hybrid_override_pattern" in config else None


@hookimpl
def parse_family(config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
    kind = family(config)
    if kind is None:
        return None
    if kind == "zamba2":
        from autoparallel_mamba.zamba import DEFAULTS

        return {"traits": {**HYBRID, "tied": True}, "defaults": DEFAULTS}
    if kind == "jamba":
        return {"traits": HYBRID, "defaults": JAMBA_DEFAULTS}
    if kind == "nemotron_h":
        return {"traits": {**HYBRID, "mtp": "own"}}
    return {"traits": HYBRID}


@hookimpl
def parse_mixer(config: ConfigView, layer: int) -> Block | None:
    kind = family(config)
    if kind is None:
        return None
    from attrs import evolve

    from autoparallel_mamba import hybrids, nemotron, zamba

    parsers = {
        "jamba": hybrids.jamba_mixer,
        "zamba2": zamba.mixer,
        "bamba": hybrids.bamba_mixer,
        "granitemoehybrid": hybrids.bamba_mixer,
        "falcon_h1": hybrids.falcon_h1_mixer,
    }
    block = parsers.get(kind, nemotron.mixer)(config, layer)
    if config.model_type in TYPES:
        return block
    config.note(f"model type '{config.model_type or '(none)'}' is not known: its sub-layers are read as those of {kind}")
    return evolve(block, specificity=SHAPE_SPECIFICITY)


@hookimpl
def parse_ffn(config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
    kind = family(config)
    if kind is None:
        return None
    from autoparallel_mamba import hybrids

    parsers = {
        "jamba": hybrids.jamba_ffn,
        "bamba": hybrids.feed_forward,
        "falcon_h1": hybrids.feed_forward,
        "granitemoehybrid": hybrids.granite_ffn,
    }
    return parsers[kind](config, layer) if kind in parsers else ()


@hookimpl
def parse_extras(config: ConfigView) -> Mapping[str, Sequence[Layer]] | None:
    if family(config) != "nemotron_h":
        return None
    from autoparallel_mamba import nemotron

    return {"mtp": nemotron.mtp_layers(config)}
