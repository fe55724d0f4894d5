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

HYBRID: dict[str, Any] = {"mixer": "hybrid", "standard_ffn": True}
"""Traits of all these types: their mixers are this plugin's, their feed-forwards the usual ones."""
MIXTRAL_EXPERTS: dict[str, Any] = {"moe_module": "block_sparse_moe", "expert_names": ["w1", "w3", "w2"]}


@hookimpl
def parse_family(config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
    kind = config.model_type
    if kind in GATED_DELTA_TYPES:
        return {"traits": {**HYBRID, "shared_gate": True}}
    if kind == "kimi_linear":
        return {"traits": HYBRID, "defaults": {"first_k_dense_replace": 1}}
    if kind == "bailing_hybrid" or kind in BAILING_LINEAR_TYPES:
        return {"traits": HYBRID}
    if kind == "minimax":
        return {"traits": {**HYBRID, **MIXTRAL_EXPERTS, "full_attention_period": 2, "full_attention_phase": 1}}
    if kind in MINIMAX_TYPES:
        return {"traits": {**HYBRID, **MIXTRAL_EXPERTS, "full_attention_period": 8}, "defaults": {"num_key_value_heads": 8}}
    return None


@hookimpl
def parse_mixer(config: ConfigView, layer: int) -> Block | None:
    from autoparallel_lightning import families

    kind = config.model_type
    if kind in GATED_DELTA_TYPES:
        return families.gated_delta_mixer(config, layer, fused=kind == "qwen3_next")
    if kind == "kimi_linear":
        return families.kimi_linear_mixer(config, layer)
    if kind == "bailing_hybrid":
        return families.bailing_hybrid_mixer(config, layer)
    if kind in BAILING_LINEAR_TYPES:
        return families.bailing_linear_mixer(config, layer)
    if kind in MINIMAX_TYPES:
        return families.minimax_mixer(config, layer)
    return None
