"""Linear-attention hybrids: lightning, gated delta and Kimi delta attention beside full-attention layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.config import ConfigView

GATED_DELTA_TYPES = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})
MINIMAX_TYPES = frozenset({"minimax", "minimax_text_01", "minimax_m1"})
BAILING_LINEAR_TYPES = frozenset({"bailing_moe_linear", "bailing_moe_linear_v2", "bailing_moe_v2_5"})

SHAPE_SPECIFICITY = 5

HYBRID: dict[str, Any] = {"mixer": "hybrid", "standard_ffn": True}
"""Traits of all these types: their mixers are this plugin's, their feed-forwards the usual ones."""
MIXTRAL_EXPERTS: dict[str, Any] = {"moe_module": "block_sparse_moe", "expert_names": ["w1", "w3", "w2"]}


def family(config: ConfigView) -> tuple[str, bool] | None:
    """The family whose mixers a config has, and whether its model type says so (else the shape of its fields does)."""
    kind = config.model_type
    if kind in GATED_DELTA_TYPES:
        return "gated_delta", True
    if kind in MINIMAX_TYPES:
        return "minimax", True
    if kind in BAILING_LINEAR_TYPES:
        return "bailing_linear", True
    if kind in {"kimi_linear", "bailing_hybrid"}:
        return kind, True
    if "linear_attn_config" in config:
        return "kimi_linear", False
    if "linear_num_value_heads" in config:
        return "gated_delta", False
    listed = config.raw("attn_type_list")
    return ("minimax", False) if isinstance(listed, list) and 0 in listed else None


@hookimpl
def parse_family(config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
    found = family(config)
    if found is None:
        return None
    name, by_type = found
    if name == "gated_delta":
        return {"traits": {**HYBRID, "shared_gate": True}}
    if name == "kimi_linear" and by_type:
        return {"traits": HYBRID, "defaults": {"first_k_dense_replace": 1}}
    if name != "minimax":
        return {"traits": HYBRID}
    if config.model_type == "minimax":
        return {"traits": {**HYBRID, **MIXTRAL_EXPERTS, "full_attention_period": 2, "full_attention_phase": 1}}
    return {"traits": {**HYBRID, **MIXTRAL_EXPERTS, "full_attention_period": 8}, "defaults": {"num_key_value_heads": 8}}


@hookimpl
def parse_mixer(config: ConfigView, layer: int) -> Block | None:
    found = family(config)
    if found is None:
        return None
    from attrs import evolve

    from autoparallel_lightning import families

    name, by_type = found
    if name == "gated_delta":
        block = families.gated_delta_mixer(config, layer, fused=config.model_type == "qwen3_next")
    else:
        block = {
            "kimi_linear": families.kimi_linear_mixer,
            "bailing_hybrid": families.bailing_hybrid_mixer,
            "bailing_linear": families.bailing_linear_mixer,
            "minimax": families.minimax_mixer,
        }[name](config, layer)
    if by_type:
        return block
    config.note(
        f"model type '{config.model_type or '(none)'}' is not known: its mixers are read as those of {name.replace('_', ' ')}"
    )
    return evolve(block, specificity=SHAPE_SPECIFICITY)
