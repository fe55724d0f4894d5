"""Stacks whose layers mix by Mamba or by attention: Jamba, Bamba, Granite-4, Falcon-H1.

Sources: Jamba (arXiv 2403.19887), Bamba and Granite-4 (IBM), Falcon-H1 (arXiv 2507.22448: both mixers side by side in
every layer), and the parameters of their checkpoints.
"""

from __future__ import annotations

import math

from attrs import evolve

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import attention_block, hidden_axis, mlp_block, moe_block, norm, residual
from autoparallel_core.spec.config import ConfigView
from autoparallel_mamba.fields import conv_dtype, ssm_dtype
from autoparallel_mamba.scans import Mamba1, Mamba2, mamba1_block, mamba2_block, mamba2_cache, mamba2_ops

SPECIFICITY = 10
_MAMBA = frozenset({"mamba", "linear_attention", "mamba2"})
_ATTENTION = frozenset({"attention", "full_attention"})


def is_mamba(config: ConfigView, layer: int, *fields: str) -> bool | None:
    """Whether a list names the layer a Mamba one; None when the config has no such list."""
    kind = config.per_layer(*fields, layer=layer)
    if kind is None:
        return None
    if kind not in _MAMBA | _ATTENTION:
        known = ", ".join(sorted(_MAMBA | _ATTENTION))
        raise SpecError(f"{config.name}: config field '{fields[0]}' names the kind {kind!r}; known: {known}")
    return kind in _MAMBA


def attention(config: ConfigView, *, rotary: bool = True, norms: bool = True) -> Block:
    """Grouped-query attention as these models have it beside their Mamba layers."""
    heads, hidden = config.size("num_attention_heads"), config.size("hidden_size")
    bias = config.flag("attention_bias")
    return attention_block(
        hidden=hidden,
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=heads),
        head_dim=config.size("head_dim", default=hidden // heads),
        qkv_bias=bias,
        out_bias=bias,
        rotary=rotary,
        norms=None if norms else (),
        specificity=SPECIFICITY,
    )


def mamba2_sizes(config: ConfigView) -> Mamba2:
    """Sizes from the ``mamba_*`` fields; ``mamba_d_head`` "auto" divides the inner width by the heads.

    Raises:
        SpecError: heads × head width is not the inner width.
    """
    hidden, heads = config.size("hidden_size"), config.size("mamba_n_heads")
    inner = config.count("mamba_d_ssm") or config.size("mamba_expand", default=2) * hidden
    stated = config.get("mamba_d_head", default="auto")
    head_dim = inner // heads if stated == "auto" else config.size("mamba_d_head")
    if heads * head_dim != inner:
        raise SpecError(f"{config.name}: mamba_n_heads {heads} × mamba_d_head {head_dim} is not the inner width {inner}")
    groups = config.size("mamba_n_groups")
    if heads % groups:
        raise SpecError(f"{config.name}: mamba_n_heads {heads} is not a multiple of mamba_n_groups {groups}")
    return Mamba2(
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=config.size("mamba_d_state"),
        kernel=config.size("mamba_d_conv"),
        chunk=config.size("mamba_chunk_size", default=256),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        in_bias=config.flag("mamba_proj_bias"),
        out_bias=config.flag("mamba_proj_bias"),
        state_dtype=ssm_dtype(config),
        conv_dtype=conv_dtype(config),
    )


# --- Jamba ----------------------------------------------------------------------------------------------------


def jamba_mixer(config: ConfigView, layer: int) -> Block:
    """Attention where layer % attn_layer_period is attn_layer_offset, Mamba-1 elsewhere."""
    period, offset = config.size("attn_layer_period"), config.count("attn_layer_offset")
    hidden = config.size("hidden_size")
    rank = config.get("mamba_dt_rank", default="auto")
    m = Mamba1(
        hidden=hidden,
        inner=config.size("mamba_expand") * hidden,
        state=config.size("mamba_d_state"),
        rank=math.ceil(hidden / 16) if rank == "auto" else config.size("mamba_dt_rank"),
        kernel=config.size("mamba_d_conv"),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias"),
        norms=True,
        state_dtype=ssm_dtype(config),
        conv_dtype=conv_dtype(config),
    )
    config.read.update(
        ("use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep", "calc_logits_for_entire_prompt")
    )
    if layer % period == offset:
        return attention(config, rotary=False)
    return mamba1_block(m, module="mamba", specificity=SPECIFICITY)


def jamba_ffn(config: ConfigView, layer: int) -> Block:
    """Experts where layer % expert_layer_period is expert_layer_offset (and there are several), dense elsewhere."""
    period, offset = config.size("expert_layer_period"), config.count("expert_layer_offset")
    experts, top_k = config.count("num_experts", default=1), config.size("num_experts_per_tok")
    hidden, inter = config.size("hidden_size"), config.size("intermediate_size")
    norms = (norm("pre_ff_layernorm", hidden_axis(hidden)),)
    if experts > 1 and layer % period == offset:
        return moe_block(
            hidden=hidden, experts=experts, top_k=top_k, expert_intermediate=inter, module="feed_forward", norms=norms,
            specificity=SPECIFICITY,
        )  # fmt: skip
    return mlp_block(hidden=hidden, intermediate=inter, module="feed_forward", norms=norms, specificity=SPECIFICITY)


# --- Bamba, Granite-4 -----------------------------------------------------------------------------------------


def bamba_mixer(config: ConfigView, layer: int) -> Block:
    """Attention in the layers that attn_layer_indices (or a list of kinds) names, Mamba-2 elsewhere."""
    sizes = mamba2_sizes(config)
    listed = is_mamba(config, layer, "layer_types", "layers_block_type")
    indices = config.get("attn_layer_indices")
    if listed is None:
        if indices is None:
            config.note("config names no attention layers (attn_layer_indices): Mamba in every layer assumed")
        listed = layer not in (indices or ())
    config.read.update(
        ("z_loss_coefficient", "num_logits_to_keep", "time_step_limit", "use_mamba_kernels", "position_embedding_type")
    )
    attend = attention(config)
    return mamba2_block(sizes, module="mamba", specificity=SPECIFICITY) if listed else attend


def granite_ffn(config: ConfigView, layer: int) -> Block:
    """A shared dense expert in every layer, beside routed ones when there are any."""
    del layer
    hidden, experts = config.size("hidden_size"), config.count("num_experts")
    shared = config.size("shared_intermediate_size")
    inter = config.size("intermediate_size")
    top_k = config.count("num_experts_per_tok")
    if not experts:
        return mlp_block(hidden=hidden, intermediate=shared, module="shared_mlp", specificity=SPECIFICITY)
    return moe_block(
        hidden=hidden, experts=experts, top_k=top_k, expert_intermediate=inter, shared_intermediate=shared,
        module="block_sparse_moe", specificity=SPECIFICITY,
    )  # fmt: skip


# --- Falcon-H1 ------------------------------------------------------------------------------------------------


def falcon_h1_mixer(config: ConfigView, layer: int) -> Block:
    """Mamba-2 and attention in parallel on the same normed input; their sum goes back to the stream."""
    del layer
    hidden = config.size("hidden_size")
    sizes = evolve(mamba2_sizes(config), norm=config.flag("mamba_rms_norm"), out_bias=config.flag("projectors_bias"))
    config.read.update(
        (
            "mamba_norm_before_gate", "mamba_use_mlp", "time_step_limit", "num_logits_to_keep", "lm_head_multiplier",
            "mlp_multipliers", "key_multiplier", "attention_out_multiplier", "attention_in_multiplier", "ssm_multipliers",
            "ssm_in_multiplier", "ssm_out_multiplier", "mlp_expansion_factor",
        )
    )  # fmt: skip
    heads = attention(config, norms=False)
    h = hidden_axis(hidden)
    attend = tuple(op for op in heads.ops if op.name != "attention_residual")
    ops = (norm("input_layernorm", h), *mamba2_ops(sizes, "mamba"), *(evolve(op, name=f"attention.{op.name}") for op in attend))
    return Block(
        "mamba2-gqa",
        (*ops, residual("parallel_add", h), residual("mixer_residual", h)),
        cache_per_token=heads.cache_per_token,
        cache_per_sequence=mamba2_cache(sizes),
        specificity=SPECIFICITY,
    )


def feed_forward(config: ConfigView, layer: int) -> Block:
    """The dense feed-forward of Bamba and Falcon-H1."""
    del layer
    hidden = config.size("hidden_size")
    return mlp_block(
        hidden=hidden, intermediate=config.size("intermediate_size"), bias=config.flag("mlp_bias"), module="feed_forward",
        norms=(norm("pre_ff_layernorm", hidden_axis(hidden)),), specificity=SPECIFICITY,
    )  # fmt: skip
