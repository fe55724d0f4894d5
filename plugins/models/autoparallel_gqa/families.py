"""What model types imply beyond their config files: the data table beside this module, and fields in odd places."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from autoparallel_core.spec.config import ConfigView


@cache
def _table() -> dict[str, dict[str, Any]]:
    data = tomllib.loads((files(__package__) / "families.toml").read_text(encoding="utf-8"))
    table: dict[str, dict[str, Any]] = {}
    for entry in data["family"]:
        for model_type in entry["types"]:
            if model_type in table:
                raise ValueError(f"families.toml states '{model_type}' twice")
            table[model_type] = entry
    return table


def family(config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
    """Traits, field defaults and relocated fields of a config's model type; None when the table has none."""
    model_type = _known_type(config)
    if model_type is None:
        return None
    entry = _table()[model_type]
    traits = {"standard": True, **{k: v for k, v in entry.items() if k not in {"types", "defaults"}}}
    fields: dict[str, Any] = {}
    if (adjust := _ADJUST.get(model_type)) is not None:
        adjust(config, traits, fields)
    return {"defaults": entry.get("defaults", {}), "traits": traits, "fields": fields}


@cache
def _by_class() -> dict[str, str]:
    return {t.replace("_", "").casefold(): t for t in _table()}


def _known_type(config: ConfigView) -> str | None:
    """The table's name for a config: its model type, or (with a note) the type of the class that it names."""
    for name in (config.model_type, config.model_type.removesuffix("_text")):
        if name in _table():
            return name
    for architecture in config.architectures:
        bare = architecture.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration").removesuffix("LMHeadModel")
        if bare != architecture and (known := _by_class().get(bare.casefold())) is not None:
            config.note(
                f"model type '{config.model_type or '(none)'}' is not known; its class {architecture} is read as '{known}'"
            )
            return known
    return None


Adjust = Callable[[ConfigView, dict[str, Any], dict[str, Any]], None]


def _falcon(config: ConfigView, traits: dict[str, Any], fields: dict[str, Any]) -> None:
    """Three layouts: new (two parallel norms), parallel (one norm), sequential; one KV head in the old ones."""
    new = config.raw("new_decoder_architecture")
    one_norm = config.raw("shared_attention_norm")
    parallel = config.raw("parallel_attn")
    if new or (new is None and one_norm is False):
        traits["norms"] = "shared" if config.raw("num_ln_in_parallel_attn") == 1 else "parallel"
    elif parallel is False:
        traits["norms"] = "pre"
    else:
        traits["norms"] = "shared"
    if new is False and config.raw("multi_query"):
        fields["num_key_value_heads"] = 1


def _gpt_bigcode(config: ConfigView, _: dict[str, Any], fields: dict[str, Any]) -> None:
    if config.raw("multi_query") is not False:
        fields["num_key_value_heads"] = 1


def _stablelm(config: ConfigView, traits: dict[str, Any], _: dict[str, Any]) -> None:
    if config.raw("use_parallel_residual"):
        traits["norms"] = "shared"


def _opt(config: ConfigView, traits: dict[str, Any], _: dict[str, Any]) -> None:
    if config.raw("do_layer_norm_before") is False:
        traits["final_norm"] = False


def _mpt(config: ConfigView, traits: dict[str, Any], fields: dict[str, Any]) -> None:
    if (ratio := config.raw("expansion_ratio")) is not None:
        traits["ffn_multiplier"] = ratio
    attention = config.raw("attn_config")
    if isinstance(attention, Mapping) and attention.get("kv_n_heads") is not None:
        fields["num_key_value_heads"] = attention["kv_n_heads"]
    if config.raw("no_bias") is False:
        traits.update(norm="layer", qkv_bias=True, mlp_bias=True)


def _dbrx(config: ConfigView, _: dict[str, Any], fields: dict[str, Any]) -> None:
    attention, ffn = config.raw("attn_config"), config.raw("ffn_config")
    if isinstance(attention, Mapping):
        fields["num_key_value_heads"] = attention.get("kv_n_heads")
    if isinstance(ffn, Mapping):
        fields["intermediate_size"] = ffn.get("ffn_hidden_size")
        fields["num_experts"] = ffn.get("moe_num_experts")
        fields["num_experts_per_tok"] = ffn.get("moe_top_k")


def _chatglm(config: ConfigView, _: dict[str, Any], fields: dict[str, Any]) -> None:
    if config.raw("multi_query_attention") is False:
        fields["num_key_value_heads"] = config.get("num_attention_heads")


def _xglm(config: ConfigView, _: dict[str, Any], fields: dict[str, Any]) -> None:
    fields["num_attention_heads"] = config.raw("attention_heads")


def _qwen(config: ConfigView, _: dict[str, Any], fields: dict[str, Any]) -> None:
    """The first generation states twice the width of each of its two parallel feed-forward matrices."""
    width = config.raw("intermediate_size")
    if isinstance(width, int):
        fields["intermediate_size"] = width // 2


def _hunyuan(config: ConfigView, traits: dict[str, Any], _: dict[str, Any]) -> None:
    if config.raw("num_shared_expert") is not None:
        traits["shared_expert"] = False


_ADJUST: dict[str, Adjust] = {
    "falcon": _falcon, "RefinedWeb": _falcon, "RefinedWebModel": _falcon, "gpt_bigcode": _gpt_bigcode, "stablelm": _stablelm,
    "opt": _opt, "mpt": _mpt, "dbrx": _dbrx, "chatglm": _chatglm, "xglm": _xglm, "qwen": _qwen, "hunyuan_v1_moe": _hunyuan,
}  # fmt: skip
