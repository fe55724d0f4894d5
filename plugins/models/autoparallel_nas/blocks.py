"""Layers of unequal shape, one entry of ``block_configs`` each (Puzzle, arXiv 2411.19146).

A part may be dropped (``no_op``), replaced by one square matrix (``replace_with_linear``), or sized on its own:
``n_heads_in_group`` query heads share a key/value head, and the feed-forward is ``ffn_mult`` · 2/3 of hidden wide,
rounded up to a multiple of 256.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import attention_block, hidden_axis, linear, mlp_block, norm, residual
from autoparallel_core.spec.config import ConfigView

SPECIFICITY = 10
ROUNDING = 256


def ffn_width(mult: float, hidden: int) -> int:
    """Width of a gated feed-forward whose three matrices hold ``mult`` times 2·hidden² parameters, rounded up."""
    width = int(2 * mult * hidden / 3)
    return -(-width // ROUNDING) * ROUNDING


def part(config: ConfigView, layer: int, name: Literal["attention", "ffn"]) -> Mapping[str, Any]:
    """The description of one part of a layer. Raises SpecError when the list does not have it."""
    entries = config.require("block_configs")
    if not isinstance(entries, list) or layer >= len(entries):
        count = len(entries) if isinstance(entries, list) else repr(entries)
        raise SpecError(f"{config.name}: config field 'block_configs' has {count} entries, but there is a layer {layer + 1}")
    found = entries[layer].get(name) if isinstance(entries[layer], dict) else None
    if not isinstance(found, dict):
        raise SpecError(f"{config.name}: block_configs[{layer}].{name} must be an object, not {found!r}")
    return found


def mixer(config: ConfigView, layer: int) -> Block | Sequence[Block]:
    """The attention of a layer: grouped-query, one matrix, or nothing."""
    spec = part(config, layer, "attention")
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    head_dim = config.size("head_dim", default=hidden // heads)
    bias = config.flag("attention_bias")
    config.read.update(("num_key_value_heads", "num_key_value_heads_per_layer"))
    if spec.get("no_op"):
        return ()
    if spec.get("replace_with_linear"):
        return _square(hidden, "self_attn.linear_attn", norm_module="input_layernorm", component="attention", bias=bias)
    group = spec.get("n_heads_in_group")
    if not isinstance(group, int) or group < 1 or heads % group:
        raise SpecError(
            f"{config.name}: block_configs[{layer}].attention.n_heads_in_group {group!r} does not divide {heads} heads"
        )
    return attention_block(
        hidden=hidden, heads=heads, kv_heads=heads // group, head_dim=head_dim, qkv_bias=bias, out_bias=bias,
        window=spec.get("window_length"), specificity=SPECIFICITY,
    )  # fmt: skip


def ffn(config: ConfigView, layer: int) -> Block | Sequence[Block]:
    """The feed-forward of a layer: gated, one matrix, or nothing."""
    spec = part(config, layer, "ffn")
    hidden = config.size("hidden_size")
    bias = config.flag("mlp_bias")
    config.read.update(("intermediate_size", "hidden_act"))
    if spec.get("no_op"):
        return ()
    if spec.get("replace_with_linear"):
        return _square(hidden, "mlp.linear_mlp", norm_module="post_attention_layernorm", component="mlp", bias=bias)
    width, mult = spec.get("intermediate_size"), spec.get("ffn_mult")
    if width is None:
        if isinstance(mult, bool) or not isinstance(mult, int | float) or mult <= 0:
            raise SpecError(f"{config.name}: block_configs[{layer}].ffn.ffn_mult must be a positive number, not {mult!r}")
        width = ffn_width(mult, hidden)
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise SpecError(f"{config.name}: block_configs[{layer}].ffn.intermediate_size must be a positive integer, not {width!r}")
    return mlp_block(hidden=hidden, intermediate=width, bias=bias, specificity=SPECIFICITY)


def _square(hidden: int, module: str, *, norm_module: str, component: Literal["attention", "mlp"], bias: bool) -> Block:
    h = hidden_axis(hidden)
    ops = (
        norm(norm_module, h),
        linear("linear", h, [(module, h)], component=component, bias=bias),
        residual("linear_residual", h),
    )
    return Block("linear", ops, specificity=SPECIFICITY)


# --- DeciLM-7B: only the key/value heads differ --------------------------------------------------------------


def listed_heads_mixer(config: ConfigView, layer: int) -> Block:
    """Grouped-query attention with ``num_key_value_heads_per_layer[layer]`` key/value heads."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.per_layer("num_key_value_heads_per_layer", layer=layer)
    config.read.add("num_key_value_heads")
    if isinstance(kv_heads, bool) or not isinstance(kv_heads, int) or kv_heads < 1 or heads % kv_heads:
        raise SpecError(f"{config.name}: num_key_value_heads_per_layer[{layer}] is {kv_heads!r}, not a divisor of {heads} heads")
    bias = config.flag("attention_bias")
    return attention_block(
        hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=config.size("head_dim", default=hidden // heads), qkv_bias=bias,
        out_bias=bias, specificity=SPECIFICITY,
    )  # fmt: skip
