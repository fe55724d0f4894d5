"""One layer's dense feed-forward block from a config."""

from __future__ import annotations

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import mlp_block
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.standard import ffn_claim, is_expert_layer, is_gated, layer_norms, num_experts


def dense(config: ConfigView, layer: int) -> Block | None:
    """The dense feed-forward of a layer, None when the layer holds experts or is not of this plugin's kinds."""
    specificity = ffn_claim(config)
    if specificity is None or is_expert_layer(config, layer):
        return None
    return mlp_block(
        hidden=config.size("hidden_size"),
        intermediate=width(config, layer),
        gated=is_gated(config),
        bias=config.flag("mlp_bias", "add_bias_linear", default=bool(config.trait("mlp_bias", default=False))),
        module=str(config.trait("module", default="mlp")),
        norms=layer_norms(config, "ffn"),
        specificity=specificity,
    )


def width(config: ConfigView, layer: int) -> int:
    """Intermediate width of a dense layer: a number, or one per layer; four times hidden where the type says so."""
    names = ("dense_intermediate_size", "intermediate_size_mlp") if num_experts(config) else ()
    v = config.per_layer(*names, "intermediate_size", layer=layer)
    if v is None and config.trait("ffn_multiplier") is not None:
        v = int(config.trait("ffn_multiplier") * config.size("hidden_size"))
    if v is None:
        config.require("intermediate_size")
    if isinstance(v, bool) or not isinstance(v, int) or v < 1:
        raise SpecError(f"{config.name}: config field 'intermediate_size' must be a positive integer, not {v!r}")
    return v
