"""A checkpoint as it was deployed: what ``settings.weights`` and ``weight_dtype`` of a serving record make of a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autoparallel_core.errors import SpecError

GROUP = 128
"""Group size assumed for 4-bit integer weights whose record does not state it (the usual one of AWQ and GPTQ)."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_LONG = {"bfloat16", "float16", "float32"}
_LINEAR = {"targets": ["Linear"]}

QUANTISATION: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8"},
    "fp8 block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
    "mxfp4": {"quant_method": "mxfp4"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True},
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": GROUP},
    "w4a16": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"g": {**_LINEAR, "weights": {"num_bits": 4, "type": "int", "group_size": GROUP, "symmetric": True}}},
    },
    "int8": {
        "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
        "config_groups": {"g": {**_LINEAR, "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
    },
}  # fmt: skip

_WORDS: tuple[tuple[str, str], ...] = (
    (r"fp8[ _-]?block", "fp8 block"), (r"nvfp4", "nvfp4"), (r"mxfp4", "mxfp4"), (r"\bawq\b", "awq"), (r"w4a16", "w4a16"),
    (r"int8|w8a8", "int8"), (r"gptq|int4|autoround", "int4"), (r"fp8", "fp8"), (r"fp4", "nvfp4"),
)  # fmt: skip
_UNSUPPORTED = re.compile(r"gguf|w4a8|/")


def _word(text: str) -> str | None:
    t = text.lower()
    return next((name for pattern, name in _WORDS if re.search(pattern, t)), None)


def own_quantisation(config: Mapping[str, Any]) -> str | None:
    """The family of the config's own quantisation, in the words of this module; None when it is not quantised."""
    nested = config.get("text_config")
    q = config.get("quantization_config") or (nested.get("quantization_config") if isinstance(nested, Mapping) else None)
    if not isinstance(q, Mapping):
        return None
    method = str(q.get("quant_method", ""))
    if method == "fp8":
        return "fp8 block" if q.get("weight_block_size") else "fp8"
    integers = [g["weights"].get("num_bits") for g in _groups(q) if g["weights"].get("type", "int") == "int"]
    if integers:
        return "w4a16" if integers[0] == 4 else "int8"
    return _word(f"{method} {q.get('quant_algo', '')}") or method


def _groups(q: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = q.get("config_groups")
    values = groups.values() if isinstance(groups, Mapping) else ()
    return [g for g in values if isinstance(g, Mapping) and isinstance(g.get("weights"), Mapping)]


def deployed_config(
    config: Mapping[str, Any], *, weights: str | None, dtype: str | None, name: str = ""
) -> tuple[Mapping[str, Any], str | None]:
    """The config with the stated weights, and a note about what was assumed; the same object when nothing changes.

    Args:
        config: the model's config.json.
        weights: free text of the record: fp8, nvfp4, "awq int4 (marlin)", "compressed-tensors", "as model_id" …
        dtype: dtype of unquantised weights: bfloat16, float16, float32, auto.
        name: the deployed model's name, which often ends in its format.

    Raises:
        SpecError: the weights are in a format that is not priced.
    """
    if dtype in _LONG:
        config = _with(config, dtype=dtype, torch_dtype=dtype)
    elif dtype not in {None, "auto"}:
        raise SpecError(f"settings.weight_dtype must be one of {', '.join(sorted(_LONG))} or auto, not '{dtype}'")
    if weights is None or weights == "auto":
        return config, None
    own = own_quantisation(config)
    text = weights.lower()
    plain = re.match(r"(bf16|fp16|fp32|bfloat16|float16)\b", text)
    if plain:
        full = _DTYPES.get(plain[1], plain[1])
        return _with(config, quantization_config=None, dtype=full, torch_dtype=full), None
    if text in {"as model_id", "compressed-tensors"}:
        wanted = _word(name)
        if wanted is None:
            if own is None and text == "compressed-tensors":
                raise SpecError(f"weights '{weights}': the format is stated neither there nor in the name '{name}'")
            return config, None
    else:
        composite = config.get("expert_dtype") == "fp4" and "fp8/fp4" in text
        if not composite and _UNSUPPORTED.search(text):
            raise SpecError(f"weights '{weights}' are in a format that is not priced")
        wanted = own if composite else _word(text)
    if wanted is None:
        raise SpecError(f"weights '{weights}' are in a format that is not priced")
    if own is not None and _same(own, wanted):
        return config, None
    note = f"weights as '{weights}': every linear layer but head and routers in {wanted}"
    return _with(config, quantization_config=QUANTISATION[wanted]), note


def _same(own: str, wanted: str) -> bool:
    """Whether the checkpoint's own format is what the record means, however loosely it says so."""
    families = ({"fp8", "fp8 block"}, {"mxfp4", "nvfp4"}, {"int4", "w4a16", "awq"})
    return own == wanted or any(own in f and wanted in f for f in families) or (own == "mxfp4" and wanted == "fp8")


def _with(config: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Fields set at the top and, where the language model is nested, there as well."""
    out = {**config, **fields}
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        out["text_config"] = {**nested, **{k: v for k, v in fields.items() if k in nested or k != "quantization_config"}}
    return out
