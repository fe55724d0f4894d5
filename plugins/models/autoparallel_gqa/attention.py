"""One layer's attention block from a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import attention_block
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Bare, Op, Weight
from autoparallel_core.spec.standard import layer_norms, layer_value, reuses_cache, standard_claim
from autoparallel_gqa.altup import layer_ops
from autoparallel_gqa.sparse import block_indexer
from autoparallel_gqa.windows import Kind, attention_kind, window_tokens


@frozen
class Shape:
    """Heads of one layer."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    shared_kv: bool = False


def attention(config: ConfigView, layer: int) -> Block | None:
    """The attention of a layer, None when the layer is not softmax attention of this plugin's kinds."""
    specificity = standard_claim(config)
    if specificity is None:
        return None
    kind = attention_kind(config, layer)
    if kind is None:
        return None
    shape = layer_shape(config, layer, kind)
    qkv_bias, out_bias = biases(config)
    indexer = block_indexer(config, layer)
    return attention_block(
        hidden=config.size("hidden_size"),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        v_head_dim=shape.v_head_dim,
        kind=_name(shape, kind) if indexer is None else f"{_name(shape, kind)}_sparse",
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=_qk_norm(config),
        qk_norm_bias=bool(config.trait("qk_norm_bias", default=False)),
        window=window_tokens(config) if kind == "sliding" else None,
        chunk=config.size("attention_chunk_size") if kind == "chunked" else None,
        output_gate=config.flag("attn_output_gate", "attention_output_gate"),
        gate_proj=_gate(config),
        inner_norm=config.trait("attention_inner_norm"),
        norms=layer_norms(config, "mixer"),
        shared_kv=shape.shared_kv,
        reuse_kv=reuses_cache(config, layer),
        rotary=not config.trait("learned_positions", default=False),
        extra=(*_sinks(config, shape.heads, kind), *(indexer.ops if indexer else ()), *layer_ops(config)),
        extra_cache=indexer.cache if indexer else (),
        top_k_keys=indexer.top_k_keys if indexer else None,
        specificity=specificity,
    )


def layer_shape(config: ConfigView, layer: int, kind: Kind) -> Shape:
    """Query and key/value heads and their widths in one layer, each from the most specific field."""
    hidden = config.size("hidden_size")
    sliding = kind == "sliding"
    other = config.raw("attention_other_setting") if sliding else None
    own = other if isinstance(other, dict) else {}
    heads = _positive(
        config,
        "num_attention_heads",
        own.get("num_attention_heads")
        or (config.raw("swa_num_attention_heads") or config.raw("num_sliding_attention_heads") if sliding else None)
        or layer_value(config, "num_attention_heads_per_layer", layer)
        or layer_value(config, "num_attention_heads", layer),
    )
    stated = own.get("head_dim") or (config.raw("swa_head_dim") if sliding else None)
    head_dim = stated or layer_value(config, "head_dim", layer) or _even_share(config, hidden, heads)
    kv = own.get("num_attention_groups") or (config.raw("swa_num_key_value_heads") if sliding else None)
    kv_heads = kv or layer_value(config, "num_key_value_heads", layer) or heads
    if sliding and kv is None and "mimo_v2" in config.model_type and "per_layer_config" not in config:
        kv_heads = 2 * int(kv_heads)
        config.note("sliding layers are taken to have twice the key/value heads of full ones, as this model type does")
    v_dim = (config.raw("swa_v_head_dim") if sliding else None) or config.raw("v_head_dim") or head_dim
    shared_kv = False
    if kind == "full" and (wide := config.get("global_head_dim")) is not None:
        if "per_layer_config" not in config:
            head_dim = v_dim = wide
        shared_kv = config.flag("attention_k_eq_v")
        if shared_kv:
            kv_heads = config.get("num_global_key_value_heads", default=kv_heads)
    shape = Shape(
        heads,
        _positive(config, "num_key_value_heads", kv_heads),
        _positive(config, "head_dim", head_dim),
        _positive(config, "v_head_dim", v_dim),
        shared_kv,
    )
    if shape.heads % shape.kv_heads:
        raise SpecError(f"{config.name}: {shape.heads} attention heads are not a multiple of {shape.kv_heads} key/value heads")
    return shape


def _positive(config: ConfigView, field: str, value: object) -> int:
    return config.positive(field, config.require(field) if value is None else value)


def _even_share(config: ConfigView, hidden: int, heads: int) -> int:
    if hidden < heads:
        raise SpecError(f"{config.name}: hidden_size {hidden} is less than the {heads} heads and head_dim is not given")
    if hidden % heads:
        config.note(f"head_dim is not given and hidden_size {hidden} is no multiple of {heads} heads: {hidden // heads} is taken")
    return hidden // heads


def _name(shape: Shape, kind: Kind) -> str:
    base = "mha" if shape.kv_heads == shape.heads else "mqa" if shape.kv_heads == 1 else "gqa"
    return base if kind == "full" else f"{base}_{kind}"


def biases(config: ConfigView) -> tuple[bool, bool]:
    """Biases of the query/key/value projections and of the output projection."""
    switch = config.trait("bias_field")
    everywhere = config.flag(str(switch), default=bool(config.trait("qkv_bias", default=False))) if switch else None
    default = bool(config.trait("qkv_bias", default=False)) if everywhere is None else everywhere
    only_qkv = config.get("qkv_bias", "use_qkv_bias", "add_qkv_bias")
    qkv = bool(only_qkv) if only_qkv is not None else config.flag("attention_bias", default=default)
    if (out := config.get("attention_out_bias")) is not None:
        return qkv, bool(out)
    if config.trait("out_bias_fixed", default=False):
        return qkv, bool(config.trait("out_bias", default=False))
    if only_qkv is not None:
        return qkv, bool(everywhere)
    return qkv, qkv


def _qk_norm(config: ConfigView) -> Literal["head", "full"] | None:
    kind = config.trait("qk_norm", default="none")
    flag = config.trait("qk_norm_flag")
    if not config.trait("standard", default=False) and config.flag("use_qk_norm", "qk_norm"):
        config.note("use_qk_norm is set: one query and one key norm of head_dim per layer assumed")
        return "head"
    if flag is not None and not config.flag(str(flag), default=bool(config.trait("qk_norm_default", default=False))):
        return None
    return "head" if kind == "head" else "full" if kind == "full" else None


def _gate(config: ConfigView) -> tuple[str, Literal["head", "element"]] | None:
    """The gate projection: of the type's kind, unless ``gating`` or ``use_head_wise_attn_gate`` switches it off."""
    trait = config.trait("gate_proj")
    if trait is None or config.raw("gating") is False or config.raw("use_head_wise_attn_gate") is False:
        return None
    name, kind = trait
    if isinstance(config.raw("gating"), str) and config.raw("gating") != "per-head":
        kind = "element"
    return str(name), "head" if kind == "head" else "element"


def _sinks(config: ConfigView, heads: int, kind: Kind) -> Sequence[Op]:
    where = config.trait("sinks")
    stated = config.raw("add_swa_attention_sink_bias" if kind == "sliding" else "add_full_attention_sink_bias")
    if stated is False or (stated is None and (where is None or (where == "sliding" and kind != "sliding"))):
        return ()
    return (Bare("sinks", weights=(Weight("self_attn.sinks", (Axis("heads", heads),), "attention", linear=False),)),)
