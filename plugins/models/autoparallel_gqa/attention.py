"""One layer's attention block from a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import attention_block
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Bare, Op, Weight
from autoparallel_core.spec.standard import layer_norms, standard_claim
from autoparallel_gqa.windows import attention_kind


def attention(config: ConfigView, layer: int) -> Block | None:
    """The attention of a layer, None when the layer is not softmax attention of this plugin's kinds."""
    specificity = standard_claim(config)
    if specificity is None:
        return None
    kind = attention_kind(config, layer)
    if kind is None:
        return None
    hidden = config.size("hidden_size")
    heads = int(config.per_layer("num_attention_heads", layer=layer) or 0)
    if heads < 1:
        raise SpecError(f"{config.name}: config field 'num_attention_heads' must be a positive integer, not {heads!r}")
    head_dim = _head_dim(config, hidden, heads)
    kv_heads = _kv_heads(config, layer, heads)
    if heads % kv_heads:
        raise SpecError(f"{config.name}: {heads} attention heads are not a multiple of {kv_heads} key/value heads")
    shared_kv = False
    if kind == "full" and "global_head_dim" in config:
        head_dim = config.size("global_head_dim")
        shared_kv = config.flag("attention_k_eq_v")
        if shared_kv:
            kv_heads = config.size("num_global_key_value_heads", default=kv_heads)
    qkv_bias = config.flag("attention_bias", "qkv_bias", "use_qkv_bias", default=bool(config.trait("qkv_bias", default=False)))
    out_bias = bool(config.trait("out_bias", default=False)) if config.trait("out_bias_fixed") else qkv_bias
    window = config.size("sliding_window", "sliding_window_size") if kind == "sliding" else None
    chunk = config.size("attention_chunk_size") if kind == "chunked" else None
    return attention_block(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        kind=_name(heads, kv_heads, kind),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=_qk_norm(config),
        window=window,
        chunk=chunk,
        output_gate=config.flag("attn_output_gate"),
        norms=layer_norms(config, "mixer"),
        shared_kv=shared_kv,
        extra=_sinks(config, heads),
        specificity=specificity,
    )


def _name(heads: int, kv_heads: int, kind: str) -> str:
    base = "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa"
    return base if kind == "full" else f"{base}_{kind}"


def _head_dim(config: ConfigView, hidden: int, heads: int) -> int:
    stated = config.get("head_dim")
    if stated:
        return config.size("head_dim")
    if hidden % heads:
        raise SpecError(f"{config.name}: hidden_size {hidden} is not a multiple of {heads} heads and head_dim is not given")
    return hidden // heads


def _kv_heads(config: ConfigView, layer: int, heads: int) -> int:
    if config.raw("multi_query") and not config.raw("new_decoder_architecture") and "num_key_value_heads" not in config:
        return 1
    k = config.per_layer("num_key_value_heads", layer=layer)
    if k is None:
        return heads
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise SpecError(f"{config.name}: config field 'num_key_value_heads' must be a positive integer, not {k!r}")
    return k


def _qk_norm(config: ConfigView) -> Literal["head", "full"] | None:
    stated = config.get("use_qk_norm")
    kind = config.trait("qk_norm", default="none")
    if kind == "flag":
        return "head" if stated else None
    if kind in {"head", "full"}:
        return "head" if kind == "head" else "full"
    return None


def _sinks(config: ConfigView, heads: int) -> Sequence[Op]:
    if not config.trait("sinks", default=False):
        return ()
    return (Bare("sinks", weights=(Weight("self_attn.sinks", (Axis("heads", heads),), "attention", linear=False),)),)
