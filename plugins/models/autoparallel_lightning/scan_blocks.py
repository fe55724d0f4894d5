"""Linear-attention mixers as blocks: gated delta rule, Kimi delta attention, lightning attention.

The recurrent state of a head is a key_width × value_width matrix that decode reads and writes for every token; it is
kept in fp32 by the reference kernels. The short convolution in front keeps its last kernel − 1 inputs.
"""

from __future__ import annotations

from typing import Literal

from autoparallel_core.spec.arch import Block, CacheTensor
from autoparallel_core.spec.blocks import head_norm, hidden_axis, linear, norm, residual
from autoparallel_core.spec.convolution import conv_cache, conv_weights
from autoparallel_core.spec.op import Axis, Elementwise, Op, Scan, Weight

STATE_DTYPE = "fp32"
CHUNK = 64
"""Tokens per chunk of the chunked (parallel) form, as the flash-linear-attention kernels use."""


def state_cache(heads: int, key_width: int, value_width: int, dtype: str = STATE_DTYPE) -> CacheTensor:
    return CacheTensor("state", Axis("heads", heads, key_width * value_width), dtype=dtype)


def gated_norm(module: str, axis: Axis, *, shared: bool) -> Elementwise:
    """Norm of the output times its gate; ``shared``: one weight vector of head width for all heads."""
    weight = Axis("latent", axis.width) if shared else axis
    return Elementwise(
        "gated_norm", role="norm", reads=(axis, axis), writes=(axis,), saved=(axis, axis),
        weights=(Weight(f"{module}.weight", (weight,), "norm", linear=False),),
    )  # fmt: skip


def gated_delta_block(
    *,
    hidden: int,
    key_heads: int,
    key_width: int,
    value_heads: int,
    value_width: int,
    kernel: int,
    fused: bool,
    state_dtype: str,
    conv_dtype: str,
    specificity: int,
    module: str = "linear_attn",
) -> Block:
    """Gated delta rule (Yang et al., arXiv 2412.06464) as Qwen3-Next uses it; ``fused`` names the packed projections."""
    h = hidden_axis(hidden)
    qk = Axis("kv_heads", key_heads, key_width)
    v, one = Axis("heads", value_heads, value_width), Axis("heads", value_heads)
    main = ("in_proj_qkvz",) * 4 if fused else ("in_proj_qkv", "in_proj_qkv", "in_proj_qkv", "in_proj_z")
    gates = ("in_proj_ba",) * 2 if fused else ("in_proj_b", "in_proj_a")
    conv = (qk, qk, v)
    ops: tuple[Op, ...] = (
        norm("input_layernorm", h),
        linear("in_proj", h, [(f"{module}.{m}", a) for m, a in zip(main, (qk, qk, v, v), strict=True)], component="attention"),
        linear("gates", h, [(f"{module}.{m}", one) for m in gates], component="attention", precise=True),
        Scan(
            "delta_rule", algorithm="gated_delta", heads=v, key_heads=qk, chunk=CHUNK, conv_width=kernel,
            weights=(
                *conv_weights(f"{module}.conv1d", conv, kernel, bias=False),
                Weight(f"{module}.A_log", (one,), "attention", linear=False),
                Weight(f"{module}.dt_bias", (one,), "attention", linear=False),
            ),
        ),
        gated_norm(f"{module}.norm", v, shared=True),
        linear("out", v, [(f"{module}.out_proj", h)], component="attention"),
        residual("attention_residual", h),
    )  # fmt: skip
    cache = (state_cache(value_heads, key_width, value_width, state_dtype), *conv_cache(conv, kernel, conv_dtype))
    return Block("gated-delta", ops, cache_per_sequence=cache, specificity=specificity)


def kda_block(
    *,
    hidden: int,
    heads: int,
    width: int,
    kernel: int,
    conv_dtype: str,
    gate_rank: int | None,
    specificity: int,
    module: str = "self_attn",
) -> Block:
    """Kimi delta attention (arXiv 2510.26692, section 3): a decay per key channel and an output gate.

    Both come from projections of rank ``gate_rank``, or from full ones when it is None.
    """
    h = hidden_axis(hidden)
    a, one = Axis("heads", heads, width), Axis("heads", heads)
    ops: list[Op] = [
        norm("input_layernorm", h),
        linear("qkv", h, [(f"{module}.{n}_proj", a) for n in "qkv"], component="attention"),
        linear("beta", h, [(f"{module}.b_proj", one)], component="attention", precise=True),
    ]
    if gate_rank:
        rank = Axis("latent", gate_rank)
        ops += [
            linear("gates_down", h, [(f"{module}.f_a_proj", rank), (f"{module}.g_a_proj", rank)], component="attention"),
            linear("decay_up", rank, [(f"{module}.f_b_proj", a)], component="attention"),
            linear("gate_up", rank, [(f"{module}.g_b_proj", a)], component="attention"),
        ]
    else:
        ops.append(linear("gates", h, [(f"{module}.f_proj", a), (f"{module}.g_proj", a)], component="attention"))
    conv = (a, a, a)
    ops += [
        Scan(
            "delta_rule", algorithm="kda", heads=a, key_heads=a, chunk=CHUNK, conv_width=kernel,
            weights=(
                *conv_weights(f"{module}.conv1d", conv, kernel, bias=False),
                Weight(f"{module}.A_log", (one,), "attention", linear=False),
                Weight(f"{module}.dt_bias", (a,), "attention", linear=False),
            ),
        ),
        gated_norm(f"{module}.o_norm", a, shared=True),
        linear("out", a, [(f"{module}.o_proj", h)], component="attention"),
        residual("attention_residual", h),
    ]  # fmt: skip
    cache = (state_cache(heads, width, width), *conv_cache(conv, kernel, conv_dtype))
    return Block("kda", tuple(ops), cache_per_sequence=cache, specificity=specificity)


def lightning_block(
    *,
    hidden: int,
    heads: int,
    width: int,
    specificity: int,
    names: tuple[str, str, str, str] = ("self_attn.qkv_proj", "self_attn.output_gate", "self_attn.norm", "self_attn.out_proj"),
    qk_norm: Literal["head"] | None = None,
    norm_module_prefix: str = "self_attn",
    qkv_bias: bool = False,
    out_bias: bool = False,
) -> Block:
    """Lightning attention (Qin et al., arXiv 2401.04658): a fixed decay per head, a full-width norm and output gate."""
    h = hidden_axis(hidden)
    a = Axis("heads", heads, width)
    qkv, gate, norm_module, out = names
    ops: list[Op] = [
        norm("input_layernorm", h),
        linear("qkv", h, [(qkv, a)] * 3, component="attention", bias=qkv_bias),
        linear("gate", h, [(gate, a)], component="attention"),
    ]
    if qk_norm:
        ops += [head_norm(f"{norm_module_prefix}.query_layernorm", a), head_norm(f"{norm_module_prefix}.key_layernorm", a)]
    ops += [
        Scan("lightning", algorithm="lightning", heads=a, key_heads=a, chunk=256),
        gated_norm(norm_module, a, shared=False),
        linear("out", a, [(out, h)], component="attention", bias=out_bias),
        residual("attention_residual", h),
    ]
    return Block("lightning", tuple(ops), cache_per_sequence=(state_cache(heads, width, width),), specificity=specificity)
