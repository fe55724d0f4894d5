"""What many model types share: whose config it is, which norms belong to which part, which layers hold experts.

Plugins for attention, dense and expert layers read configs through these so that they agree on every layer.
The traits named here come from the hook ``parse_family``.
"""

from __future__ import annotations

from typing import Any, Literal

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import embedding_block, head_block, hidden_axis, linear, norm, residual
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Bare, Elementwise, Op, Weight

KNOWN_TYPE = 10
FIELD_SHAPE = 0

_OTHER_MIXERS = (
    "kv_lora_rank", "hybrid_override_pattern", "block_configs", "linear_attn_config", "attn_type_list", "layer_group_size",
    "ssm_state_size", "mamba_d_state", "linear_num_value_heads", "compress_ratios", "layers_block_type",
)  # fmt: skip
"""Fields of layers that are no plain attention; an unknown model type that has one is not claimed by its field shape."""

_OTHER_STACKS = ("hybrid_override_pattern", "block_configs", "layers_block_type")
"""Fields of stacks whose feed-forwards are not simply one per layer."""

_DECODERS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


def standard_claim(config: ConfigView) -> int | None:
    """Specificity of a claim on a layer's softmax attention.

    A model type with the trait ``standard`` is known; an unknown one is read by its fields when it is a decoder
    and has no field of another kind of mixer. None: not such a model.
    """
    if config.trait("standard", default=False):
        return KNOWN_TYPE
    if "num_attention_heads" not in config or any(f in config for f in _OTHER_MIXERS):
        return None
    return FIELD_SHAPE if _is_decoder(config) else None


def ffn_claim(config: ConfigView) -> int | None:
    """Specificity of a claim on a layer's dense or expert feed-forward.

    Known are the types with trait ``standard``, and those whose mixer is another plugin's but whose feed-forward
    is the usual one (trait ``standard_ffn``); else by fields, as in :func:`standard_claim`.
    """
    if config.trait("standard", default=False) or config.trait("standard_ffn", default=False):
        return KNOWN_TYPE
    if any(f in config for f in _OTHER_STACKS) or not ("intermediate_size" in config or "moe_intermediate_size" in config):
        return None
    return FIELD_SHAPE if _is_decoder(config) else None


def _is_decoder(config: ConfigView) -> bool:
    return not config.architectures or any(c.endswith(_DECODERS) for c in config.architectures)


_NORMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pre": (("input_layernorm",), ("post_attention_layernorm",)),
    "sandwich": (
        ("input_layernorm", "post_attention_layernorm"),
        ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
    "post": (("post_attention_layernorm",), ("post_feedforward_layernorm",)),
    "shared": (("input_layernorm",), ()),
    "parallel": (("input_layernorm",), ("post_attention_layernorm",)),
}
"""Trait ``norms`` → norms of the mixer, norms of the feed-forward."""


def layer_norms(config: ConfigView, part: Literal["mixer", "ffn"]) -> tuple[Elementwise, ...]:
    """The norms of one part of a layer: arrangement by trait ``norms``, kind by trait ``norm`` (rms, layer, plain)."""
    h = hidden_axis(config.size("hidden_size"))
    kind = config.trait("norm", default="rms")
    names = _NORMS[str(config.trait("norms", default="pre"))][part == "ffn"]
    return tuple(norm(n, h, bias=kind == "layer", affine=kind != "plain") for n in names)


def final_norm(config: ConfigView) -> Elementwise:
    """The norm in front of the head, of the model type's kind."""
    kind = config.trait("norm", default="rms")
    affine = kind != "plain" and bool(config.trait("final_norm", default=True))
    return norm("norm", hidden_axis(config.size("hidden_size")), bias=kind == "layer", affine=affine)


def standard_prologue(config: ConfigView) -> Block:
    """Token embedding, with a table of learned positions, a norm or per-layer inputs where the model has them."""
    hidden = config.size("hidden_size")
    h = hidden_axis(hidden)
    extra: list[Op] = []
    if config.trait("learned_positions", default=False):
        rows = config.size("max_position_embeddings") + int(config.trait("position_offset", default=0))
        extra.append(
            Bare("positions", weights=(Weight("embed_positions", (Axis("latent", rows), h), "embedding", linear=False),))
        )
    if config.trait("embedding_norm", default=False):
        extra.append(norm("embed_layernorm", h, bias=config.trait("norm") == "layer"))
    width = config.count("hidden_size_per_layer_input")
    if width:
        rows, layers = config.size("vocab_size_per_layer_input"), config.size("num_hidden_layers")
        table, all_layers = (Axis("vocab", rows), Axis("latent", layers * width)), Axis("latent", layers * width)
        extra += [
            Bare("per_layer_embedding", weights=(Weight("embed_tokens_per_layer", table, "embedding", linear=False),)),
            linear("per_layer_projection", h, [("per_layer_model_projection", all_layers)], component="embedding"),
            norm("per_layer_projection_norm", Axis("latent", width)),
        ]
    if config.get("word_embed_proj_dim", default=hidden) != hidden:
        raise SpecError(f"{config.name}: embeddings narrower than hidden_size (word_embed_proj_dim) are not supported")
    return embedding_block(vocab=config.size("vocab_size"), hidden=hidden, extra=extra)


def standard_epilogue(config: ConfigView, *, tied: bool) -> Block:
    """Final norm, head and loss."""
    bias = config.flag("lm_head_bias", default=bool(config.trait("head_bias", default=False)))
    vocab, hidden = config.size("vocab_size"), config.size("hidden_size")
    return head_block(vocab=vocab, hidden=hidden, tied=tied, bias=bias, final_norm=final_norm(config))


def per_layer_input(config: ConfigView) -> tuple[Op, ...]:
    """The gated input that small models add to every layer from a table of its own (``hidden_size_per_layer_input``)."""
    width = config.count("hidden_size_per_layer_input")
    if not width:
        return ()
    h, p = hidden_axis(config.size("hidden_size")), Axis("latent", width)
    return (
        linear("per_layer_input_gate", h, [("per_layer_input_gate", p)], component="other"),
        Elementwise("per_layer_input", role="gate", reads=(p, p), writes=(p,), saved=(p, p)),
        linear("per_layer_output", p, [("per_layer_projection", h)], component="other"),
        norm("post_per_layer_input_norm", h),
        residual("per_layer_residual", h),
    )


def layer_value(config: ConfigView, field: str, layer: int) -> Any:
    """A field's value in one layer: an entry of ``per_layer_config``, of a list, or the one value for all; None if absent."""
    overrides = config.raw("per_layer_config")
    if isinstance(overrides, dict):
        for key in (str(layer), f"{layer:02d}", f"{layer:03d}"):
            own = overrides.get(key)
            if isinstance(own, dict) and own.get(field) is not None:
                return own[field]
    return config.per_layer(field, layer=layer)


def reuses_cache(config: ConfigView, layer: int) -> bool:
    """Whether a layer attends to an earlier layer's keys and values (the last ``num_kv_shared_layers``)."""
    shared = config.count("num_kv_shared_layers")
    return shared > 0 and layer >= config.size("num_hidden_layers") - shared


def mlp_bias(config: ConfigView) -> bool:
    """Whether the feed-forward's matrices have biases."""
    default = bool(config.trait("mlp_bias", default=False))
    switch = config.trait("bias_field")
    if switch is not None:
        default = config.flag(str(switch), default=default)
    return config.flag("mlp_bias", "add_bias_linear", default=default)


def num_experts(config: ConfigView) -> int:
    """Routed experts per expert layer; 0 for a dense model. A list (one value per modality) counts its largest."""
    return config.largest("num_experts")


def is_expert_layer(config: ConfigView, layer: int) -> bool:
    """Whether a layer holds routed experts, by the first of the fields that says so; all do when none does."""
    if config.raw("enable_moe_block") is False or not num_experts(config):
        return False
    listed = config.get("mlp_layer_types", "is_moe_layer")
    if isinstance(listed, list):
        entry = config.per_layer("mlp_layer_types", "is_moe_layer", layer=layer)
        return entry not in {"dense", 0}
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(config.per_layer("moe_layer_freq", layer=layer))
    if (indices := config.layers("moe_layers", "moe_layers_enum")) is not None:
        return layer in indices
    if layer in (config.layers("mlp_only_layers") or ()):
        return False
    start = config.count("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    end = config.get("moe_layer_end_index")
    if layer < start or (isinstance(end, int) and end >= 0 and layer > end):
        return False
    for field in ("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval"):
        if field in config:
            step = config.count(field)
            return step > 0 and (layer + 1) % step == 0
    if isinstance(frequency, int) and frequency > 1:
        return layer % frequency == 0
    return True


def is_gated(config: ConfigView) -> bool:
    """Three feed-forward matrices or two: the field ``gated_mlp``, the model type, or the name of the activation."""
    stated = config.raw("gated_mlp")
    if stated is not None:
        return config.flag("gated_mlp")
    trait = config.trait("gated")
    if trait is not None:
        return bool(trait)
    act = config.get("hidden_act")
    if act is None:
        if not _known(config):
            config.note("no hidden_act and no gated_mlp: a gated feed-forward (three matrices) is assumed")
        return True
    return _known(config) or str(act).lower() not in _UNGATED


def _known(config: ConfigView) -> bool:
    return bool(config.trait("standard", default=False) or config.trait("standard_ffn", default=False))


_UNGATED = frozenset({"relu", "relu2", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "squared_relu", "quick_gelu"})
