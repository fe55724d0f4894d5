"""Which layers of which model type mix by linear attention, and how the remaining ones attend."""

from __future__ import annotations

from typing import Literal

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import attention_block, hidden_axis, linear, mla_block
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Op
from autoparallel_lightning.scan_blocks import gated_delta_block, kda_block, lightning_block

SPECIFICITY = 10
LINEAR_KINDS = frozenset({"linear_attention", "linear", "kda", "lightning", "gated_delta"})
FULL_KINDS = frozenset({"full_attention", "attention", "full", "mla"})
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}


def is_linear(kind: str, config: ConfigView, field: str) -> bool:
    """Whether a per-layer kind names a linear-time mixer. Raises SpecError for a kind nobody knows."""
    if kind in LINEAR_KINDS:
        return True
    if kind in FULL_KINDS:
        return False
    known = ", ".join(sorted(LINEAR_KINDS | FULL_KINDS))
    raise SpecError(f"{config.name}: config field '{field}' names the kind {kind!r}; known: {known}")


def dtype_of(config: ConfigView, *names: str, default: str) -> str:
    """A dtype field as our short name."""
    v = str(config.get(*names, default=default)).removeprefix("torch.")
    if v not in DTYPES:
        raise SpecError(f"{config.name}: config field '{names[0]}' is {v!r}; known: {', '.join(DTYPES)}")
    return DTYPES[v]


def model_dtype(config: ConfigView) -> str:
    """Dtype of the convolution's cache: the model's own, 16 bit when the config does not say."""
    v = config.get("torch_dtype", "dtype", default="bfloat16")
    return DTYPES.get(str(v).removeprefix("torch."), "bf16")


# --- gated delta (Qwen3-Next, Qwen3.5) ------------------------------------------------------------------------


def gated_delta_mixer(config: ConfigView, layer: int, *, fused: bool) -> Block:
    """Every ``full_attention_interval``-th layer attends with an output gate, the others follow the gated delta rule."""
    interval = config.size("full_attention_interval", default=4)
    config.read.add("mlp_only_layers")
    kind = config.per_layer("layer_types", layer=layer)
    linear = is_linear(kind, config, "layer_types") if kind is not None else (layer + 1) % interval != 0
    key_heads, value_heads = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    key_width, value_width = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    kernel = config.size("linear_conv_kernel_dim", default=4)
    state_dtype = dtype_of(config, "mamba_ssm_dtype", default="float32")
    if value_heads % key_heads:
        raise SpecError(
            f"{config.name}: linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}"
        )
    if linear:
        return gated_delta_block(
            hidden=config.size("hidden_size"), key_heads=key_heads, key_width=key_width, value_heads=value_heads,
            value_width=value_width, kernel=kernel, fused=fused, state_dtype=state_dtype, conv_dtype=model_dtype(config),
            specificity=SPECIFICITY,
        )  # fmt: skip
    return gated_full_attention(config)


def gated_full_attention(config: ConfigView) -> Block:
    heads = config.size("num_attention_heads")
    hidden = config.size("hidden_size")
    bias = config.flag("attention_bias")
    return attention_block(
        hidden=hidden,
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=heads),
        head_dim=config.size("head_dim", default=hidden // heads),
        output_gate=config.flag("attn_output_gate", default=True),
        qk_norm="head",
        qkv_bias=bias,
        out_bias=bias,
        kind="gqa-gated",
        specificity=SPECIFICITY,
    )


# --- KDA (Kimi-Linear, Ling hybrids) --------------------------------------------------------------------------


def kimi_linear_mixer(config: ConfigView, layer: int) -> Block:
    """KDA or MLA by ``linear_attn_config`` (layers counted from 1), ``layer_types``, or one MLA layer after every fourth."""
    sub = config.get("linear_attn_config", default={})
    if not isinstance(sub, dict):
        raise SpecError(f"{config.name}: config field 'linear_attn_config' must be an object, not {sub!r}")
    full, linear = sub.get("full_attn_layers"), sub.get("kda_layers")
    kind = config.per_layer("layer_types", layer=layer)
    if full is not None or linear is not None:
        in_full, in_linear = layer + 1 in (full or ()), layer + 1 in (linear or ())
        if in_full == in_linear and (full is not None and linear is not None):
            state = "both lists" if in_full else "neither list"
            raise SpecError(f"{config.name}: linear_attn_config puts layer {layer + 1} (counted from 1) in {state}")
        is_kda = in_linear if linear is not None else not in_full
    elif kind is not None:
        is_kda = is_linear(kind, config, "layer_types")
    else:
        is_kda = not (layer and layer % 4 == 0)
        config.note("config lists no linear_attn_config: MLA in layers 5, 9, 13 … and KDA elsewhere assumed")
    if not is_kda:
        return _latent(config)
    width = sub.get("head_dim") or config.size("linear_head_dim")
    return kda_block(
        hidden=config.size("hidden_size"),
        heads=sub.get("num_heads") or config.size("linear_num_heads"),
        width=width,
        kernel=sub.get("short_conv_kernel_size") or config.size("linear_conv_kernel_dim", default=4),
        gate_rank=width,
        conv_dtype=model_dtype(config),
        specificity=SPECIFICITY,
    )


def _latent(config: ConfigView, *, module: str = "self_attn", extra: tuple[Op, ...] = ()) -> Block:
    config.read.update(("num_key_value_heads", "head_dim", "qk_head_dim"))
    return mla_block(
        hidden=config.size("hidden_size"),
        heads=config.size("num_attention_heads"),
        q_lora_rank=config.count("q_lora_rank") or None,
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_nope_head_dim=config.size("qk_nope_head_dim"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
        bias=config.flag("attention_bias"),
        module=module,
        extra=extra,
        specificity=SPECIFICITY,
    )


def _last_of_group(config: ConfigView, layer: int) -> bool:
    """The last layer of each full group attends; so do layers left over after the last full group."""
    group, n = config.size("layer_group_size"), config.size("num_hidden_layers")
    return (layer + 1) % group == 0 or layer >= n // group * group


def bailing_hybrid_mixer(config: ConfigView, layer: int) -> Block:
    """Ling hybrids with KDA: the last layer of each ``layer_group_size`` is MLA with one output gate per head."""
    kind = config.per_layer("layer_types", layer=layer)
    kda = is_linear(kind, config, "layer_types") if kind is not None else not _last_of_group(config, layer)
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kernel = config.size("short_conv_kernel_size", default=4)
    width = config.size("head_dim")
    config.read.update(("layer_group_size", "no_kda_lora", "kda_safe_gate", "kda_lower_bound"))
    if kda:
        return kda_block(
            hidden=hidden, heads=heads, width=width, kernel=kernel, gate_rank=None, conv_dtype=model_dtype(config),
            specificity=SPECIFICITY,
        )  # fmt: skip
    gate = linear(
        "head_gate", hidden_axis(hidden), [("self_attn.g_proj", Axis("heads", heads))], component="attention", precise=True
    )
    return _latent(config, extra=(gate,))


def bailing_linear_mixer(config: ConfigView, layer: int) -> Block:
    """Ling and Ring linear models: lightning attention, the last layer of each group is MLA or grouped-query attention."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    width = config.size("head_dim", default=hidden // heads)
    qkv_bias, bias = config.flag("use_qkv_bias"), config.flag("use_bias")
    qk_norm: Literal["head"] | None = "head" if config.flag("use_qk_norm") else None
    config.read.update(("group_norm_size", "linear_silu", "max_window_layers"))
    if not _last_of_group(config, layer):
        names = ("attention.query_key_value", "attention.g_proj", "attention.g_norm", "attention.dense")
        return lightning_block(
            hidden=hidden, heads=heads, width=width, names=names, qk_norm=qk_norm, norm_module_prefix="attention",
            qkv_bias=qkv_bias, out_bias=bias, specificity=SPECIFICITY,
        )  # fmt: skip
    if "kv_lora_rank" in config:
        return _latent(config, module="attention")
    return attention_block(
        hidden=hidden, heads=heads, kv_heads=config.size("num_key_value_heads", default=heads), head_dim=width,
        module="attention", names=("query_key_value", "query_key_value", "query_key_value", "dense"),
        qkv_bias=qkv_bias, out_bias=bias, qk_norm=qk_norm, specificity=SPECIFICITY,
    )  # fmt: skip


# --- lightning (MiniMax-Text-01, M1) --------------------------------------------------------------------------


MINIMAX_SCALES = frozenset(
    {"attn_pattern", "block_size", "sliding_window", "postnorm", "shared_moe_mode"}
    | {f"layernorm_{part}_{scale}" for part in ("full_attention", "linear_attention", "mlp") for scale in ("alpha", "beta")}
    | {f"{part}_{scale}_factor" for part in ("full_attn", "linear_attn", "mlp") for scale in ("alpha", "beta")}
)
"""Residual scales and block sizes: no parameters, no memory."""


def minimax_mixer(config: ConfigView, layer: int) -> Block:
    """``attn_type_list`` (1 full, 0 lightning), or ``layer_types``, or the model type's own period."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    width = config.size("head_dim", default=hidden // heads)
    kv_heads = config.size("num_key_value_heads", default=heads)
    flag = config.per_layer("attn_type_list", layer=layer)
    kind = config.per_layer("layer_types", layer=layer)
    if flag is not None:
        if flag not in (0, 1):
            raise SpecError(f"{config.name}: config field 'attn_type_list' must hold 0 (lightning) or 1 (full), not {flag!r}")
        linear = flag == 0
    elif kind is not None:
        linear = is_linear(kind, config, "layer_types")
    else:
        period = int(config.trait("full_attention_period", default=8))
        linear = (layer + 1) % period != config.trait("full_attention_phase", default=0)
        config.note(f"config has no attn_type_list: one full-attention layer in {period} assumed")
    config.read.update(MINIMAX_SCALES)
    if linear:
        return lightning_block(hidden=hidden, heads=heads, width=width, specificity=SPECIFICITY)
    return attention_block(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=width, specificity=SPECIFICITY)
