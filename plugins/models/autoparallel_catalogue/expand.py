"""From the catalogue's short facts to the fields of a config file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_FIELDS = {
    "type": "model_type",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv": "num_key_value_heads",
    "head": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "experts": "num_experts",
    "top_k": "num_experts_per_tok",
    "expert_ffn": "moe_intermediate_size",
    "shared": "n_shared_experts",
    "shared_ffn": "shared_expert_intermediate_size",
    "shared_total": "moe_shared_expert_intermediate_size",
    "dense_first": "first_k_dense_replace",
    "window": "sliding_window",
    "moe_every": "interleave_moe_layer_step",
    "mtp": "num_nextn_predict_layers",
    "mtp_own": "mtp_num_hidden_layers",
    "mtp_modules": "num_mtp_modules",
    "stack": "hybrid_override_pattern",
}
"""Short name → config field, for facts that are one value."""

_LAYER_LETTERS = {"S": "sliding_attention", "F": "full_attention", "L": "linear_attention"}

_LISTS: dict[str, tuple[str, ...]] = {
    "latent": ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    "index": ("index_n_heads", "index_head_dim", "index_topk"),
    "linear": (
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ),
    "mamba": ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
}  # fmt: skip

_WEIGHTS: dict[str, dict[str, Any]] = {
    "fp8_block128": {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "gate"]},
    "fp8": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"linear": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
        "ignore": ["lm_head"],
    },
    "fp8_and_cache": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": ["lm_head"]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "mxfp4_experts": {"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn", "router", "embed_tokens", "lm_head"]},
    "int4_experts": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "experts": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}}
        },
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    },
}
"""How released checkpoints store their weights, by the name in the data file."""

_SHAPED = {"about", "family", "note", "vision", "more", "pattern", "weights", "ratios", "nas", "lightning_every", "indexer_every"}


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "models.toml").read_text(encoding="utf-8"))


def facts() -> dict[str, dict[str, Any]]:
    """Each model's short facts, those of its family, or of the model it is like, underneath."""
    data = _data()
    out = {}
    for name, own in data["model"].items():
        base = data["family"][own["family"]] if "family" in own else {}
        out[name] = {**base, **own, "more": {**base.get("more", {}), **own.get("more", {})}}
    for name, own in data["also"].items():
        differs = {k: v for k, v in own.items() if k != "like"}
        out[name] = {**out[own["like"]], **differs}
    return out


def configs() -> dict[str, Mapping[str, Any]]:
    """Config fields of every model of the catalogue."""
    return {name: expand(known) for name, known in facts().items()}


def expand(known: Mapping[str, Any]) -> dict[str, Any]:
    """Config fields for one model's facts. Raises ValueError for a fact that has no meaning here."""
    if unknown := set(known) - set(_FIELDS) - set(_LISTS) - _SHAPED:
        raise ValueError(f"unknown facts in models.toml: {', '.join(sorted(unknown))}")
    fields: dict[str, Any] = {"tie_word_embeddings": False, "dtype": "bfloat16"}
    fields |= {_FIELDS[k]: v for k, v in known.items() if k in _FIELDS}
    for short, names in _LISTS.items():
        if short in known:
            fields |= {n: v for n, v in zip(names, known[short], strict=True) if v}
    layers = known["layers"]
    if "pattern" in known:
        period = known["pattern"]
        fields["layer_types"] = [_LAYER_LETTERS[period[i % len(period)]] for i in range(layers)]
    if "lightning_every" in known:
        fields["attn_type_list"] = [int((i + 1) % known["lightning_every"] == 0) for i in range(layers)]
    if "ratios" in known:
        fields["compress_ratios"] = [int(r) for r in _repeated(known["ratios"])]
    if "nas" in known:
        fields["block_configs"] = [_nas_block(*entry.split(":")) for entry in _repeated(known["nas"])]
    if "indexer_every" in known:
        first, step = known["indexer_every"]
        fields["indexer_types"] = ["full" if i < first or (i + 1 - first) % step == 0 else "shared" for i in range(layers)]
    if "note" in known:
        fields["_notes"] = [known["note"]]
    fields |= known.get("more", {})
    if "weights" in known:
        fields["quantization_config"] = _WEIGHTS[known["weights"]]
    return _with_vision(fields, known["vision"]) if "vision" in known else fields


def _repeated(text: str) -> list[str]:
    """``a,bx2 c`` → a b a b c."""
    out: list[str] = []
    for part in text.split():
        items, _, times = part.partition("x")
        out += items.split(",") * int(times or 1)
    return out


def _nas_block(group: str, multiplier: str) -> dict[str, Any]:
    attention = {"no_op": True} if group == "-" else {"no_op": False, "n_heads_in_group": int(group)}
    return {"attention": attention, "ffn": {"no_op": False, "ffn_mult": float(multiplier)}}


def _with_vision(fields: dict[str, Any], tower: str) -> dict[str, Any]:
    """The nested form of a model with a vision tower."""
    whole = {k: fields[k] for k in ("model_type", "tie_word_embeddings", "dtype")}
    vision = dict(_data()["vision"][tower])
    if "depth" in vision:
        vision["out_hidden_size"] = fields["hidden_size"]
    text = {**fields, "model_type": f"{fields['model_type']}_text"}
    return {**whole, "text_config": text, "vision_config": vision}
