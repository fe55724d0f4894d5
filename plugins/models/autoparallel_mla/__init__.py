"""Multi-head latent attention and its successors, for every model family that uses them.

Recognised by model type (specificity 10) or by the field ``kv_lora_rank`` (specificity 5, with a note).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Block, Layer
from autoparallel_core.spec.config import ConfigView

LATENT_TYPES = frozenset(
    {
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm4_moe_lite", "glm_moe_dsa", "deepseek_vl_v2",
        "axk1", "sarvam_mla", "youtu",
    }
)  # fmt: skip
"""Model types whose every layer is plain MLA (with or without the sparse indexer)."""
COMPRESSED_TYPES = frozenset({"deepseek_v4"})
TYPE_SPECIFICITY, SHAPE_SPECIFICITY = 10, 5


def _compressed(config: ConfigView) -> bool:
    """DeepSeek-V4 by type, by class name, or by its field shape (re-uploads carry other model types)."""
    by_class = any(a.startswith("DeepseekV4") for a in config.architectures)
    return config.model_type in COMPRESSED_TYPES or by_class or "compress_ratios" in config


@hookimpl
def parse_family(config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
    if _compressed(config):
        return {"traits": {"mtp": "own", "gated": True}}
    if config.model_type in LATENT_TYPES:
        defaults = {"first_k_dense_replace": 1} if config.model_type == "glm4_moe_lite" else {}
        return {"traits": {"standard_ffn": True}, "defaults": defaults}
    return None


@hookimpl
def parse_mixer(config: ConfigView, layer: int) -> Block | None:
    from autoparallel_mla import compressed, mla

    if _compressed(config):
        return compressed.mixer(config, layer)
    if config.model_type in LATENT_TYPES:
        return mla.latent_attention(config, layer, specificity=TYPE_SPECIFICITY)
    if "kv_lora_rank" in config and config.trait("mixer") is None:
        config.note(f"model type '{config.model_type or '(none)'}' is not known: read as latent attention from kv_lora_rank")
        return mla.latent_attention(config, layer, specificity=SHAPE_SPECIFICITY)
    return None


@hookimpl
def parse_ffn(config: ConfigView, layer: int) -> Block | None:
    from autoparallel_mla import compressed

    return compressed.ffn(config, layer) if _compressed(config) else None


@hookimpl
def parse_extras(config: ConfigView) -> Mapping[str, Sequence[Layer]] | None:
    from autoparallel_mla import compressed

    if not _compressed(config):
        return None
    tied = config.flag("tie_word_embeddings")
    return {"epilogue": (Layer((compressed.epilogue(config, tied=tied),)),), "mtp": compressed.mtp_layers(config)}
