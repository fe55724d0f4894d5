"""One layer's dense feed-forward block from a config."""

from __future__ import annotations

from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import mlp_block
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Bare, Op, Weight
from autoparallel_core.spec.standard import (
    ffn_claim,
    is_expert_layer,
    is_gated,
    layer_norms,
    layer_value,
    mlp_bias,
    num_experts,
    per_layer_input,
    reuses_cache,
)


def dense(config: ConfigView, layer: int) -> Block | None:
    """The dense feed-forward of a layer, None when the layer holds experts or is not of this plugin's kinds."""
    specificity = ffn_claim(config)
    if specificity is None or is_expert_layer(config, layer):
        return None
    return mlp_block(
        hidden=config.size("hidden_size"),
        intermediate=width(config, layer),
        gated=is_gated(config),
        bias=mlp_bias(config),
        norms=layer_norms(config, "ffn"),
        inner_norm=config.trait("mlp_inner_norm"),
        extra=(*_scalars(config), *per_layer_input(config)),
        specificity=specificity,
    )


def width(config: ConfigView, layer: int) -> int:
    """Intermediate width of a dense layer: a number, or one per layer; a multiple of hidden where the type says so."""
    v = None
    if num_experts(config):
        v = config.get("dense_intermediate_size", "intermediate_size_mlp")
    if v is None:
        v = layer_value(config, "intermediate_size", layer)
    if v is None and config.trait("ffn_multiplier") is not None:
        v = int(config.trait("ffn_multiplier") * config.size("hidden_size"))
    v = config.positive("intermediate_size", config.require("intermediate_size") if v is None else v)
    return 2 * v if config.flag("use_double_wide_mlp") and reuses_cache(config, layer) else v


def _scalars(config: ConfigView) -> tuple[Op, ...]:
    """Learned scalars of the activation."""
    n = config.trait("mlp_scalars", default=0)
    if not n:
        return ()
    return (Bare("activation_scalars", weights=(Weight("mlp.act_fn", (Axis("latent", int(n)),), "mlp", linear=False),)),)
