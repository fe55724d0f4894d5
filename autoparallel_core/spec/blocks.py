"""Builders that lower the usual sub-layers to operators; plugins compose them, and add their own.

The element-wise passes follow what unfused kernels move, so that their sum per token and layer is
20·h (two norms: read and write; two residual additions: two reads, one write), 4·(q+kv) for rotary
and 6·f (gated) or 4·f for the activation, in bytes at 16 bit (Korthikanti et al., arXiv 2205.05198,
section 4, counts the same tensors for activation memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from autoparallel_core.spec.arch import Block, CacheTensor
from autoparallel_core.spec.op import (
    Attention,
    Axis,
    Bare,
    Component,
    Elementwise,
    ExpertGemm,
    Gemm,
    Lookup,
    Loss,
    Op,
    TokenExchange,
    Weight,
)


def hidden_axis(size: int) -> Axis:
    return Axis("hidden", size)


def linear_weights(k: Axis, parts: Sequence[tuple[str, Axis]], *, bias: bool = False, component: Component) -> tuple[Weight, ...]:
    """One matrix (and bias) per named part of a fused projection."""
    out = [Weight(module, (k, n), component) for module, n in parts]
    if bias:
        out += [Weight(f"{module}.bias", (n,), component, linear=False) for module, n in parts]
    return tuple(out)


def linear(
    name: str, k: Axis, parts: Sequence[tuple[str, Axis]], *, component: Component, bias: bool = False, precise: bool = False
) -> Gemm:
    """A (fused) projection ``k → parts``; ``parts`` are ``(checkpoint module, axis)``."""
    return Gemm(
        name, k=k, n=tuple(n for _, n in parts), precise=precise, weights=linear_weights(k, parts, bias=bias, component=component)
    )


def norm(name: str, axis: Axis, *, bias: bool = False, module: str | None = None, affine: bool = True) -> Elementwise:
    """RMSNorm (one vector) or LayerNorm (``bias``: two); ``affine`` False has no parameters. Saves its input."""
    module = module or name
    weights: tuple[Weight, ...] = ()
    if affine:
        weights = (Weight(f"{module}.weight", (axis,), "norm", linear=False),)
        if bias:
            weights += (Weight(f"{module}.bias", (axis,), "norm", linear=False),)
    return Elementwise(name, role="norm", reads=(axis,), writes=(axis,), saved=(axis,), weights=weights)


def residual(name: str, hidden: Axis) -> Elementwise:
    """``x + f(x)``: two reads, one write."""
    return Elementwise(name, role="residual", reads=(hidden, hidden), writes=(hidden,))


def head_norm(module: str, axis: Axis, *, bias: bool = False) -> Elementwise:
    """Per-head query or key norm: one vector of head width (``bias``: two), shared by the heads."""
    one = (Axis("latent", axis.width),)
    weights: tuple[Weight, ...] = (Weight(f"{module}.weight", one, "norm", linear=False),)
    if bias:
        weights += (Weight(f"{module}.bias", one, "norm", linear=False),)
    return Elementwise(module, role="norm", reads=(axis,), writes=(axis,), saved=(axis,), weights=weights)


def attention_block(
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    kind: str = "gqa",
    module: str = "self_attn",
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: Literal["head", "full"] | None = None,
    window: int | None = None,
    chunk: int | None = None,
    output_gate: bool = False,
    rotary: bool = True,
    norms: Sequence[Op] | None = None,
    shared_kv: bool = False,
    with_cache: bool = True,
    causal: bool = True,
    extra: Sequence[Op] = (),
    specificity: int = 0,
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    gate_proj: tuple[str, Literal["head", "element"]] | None = None,
    reuse_kv: bool = False,
    qk_norm_bias: bool = False,
    inner_norm: str | None = None,
    top_k_keys: int | None = None,
    extra_cache: Sequence[CacheTensor] = (),
) -> Block:
    """Multi-head, grouped-query or multi-query attention with its norm and residual.

    ``shared_kv``: the value is the key (no v projection). ``output_gate``: the query projection also makes
    a gate of the same width; ``gate_proj`` (name, per head or per element): a projection of its own makes it.
    ``norms`` replaces the single pre-norm (pass () when the layer owns it elsewhere). ``reuse_kv``: keys and values
    are another layer's (no projections, nothing cached). ``inner_norm`` names a norm in front of the output projection.
    ``top_k_keys`` limits each query to that many keys, chosen by ops and cache given as ``extra`` and ``extra_cache``.
    """
    h = hidden_axis(hidden)
    v_dim = v_head_dim or head_dim
    q, k, v = Axis("heads", heads, head_dim), Axis("kv_heads", kv_heads, head_dim), Axis("kv_heads", kv_heads, v_dim)
    o = Axis("heads", heads, v_dim)
    nq, nk, nv, no = (f"{module}.{n}" for n in names)
    parts = [(nq, Axis("heads", heads, head_dim * 2) if output_gate else q)]
    if not reuse_kv:
        parts += [(nk, k)] if shared_kv else [(nk, k), (nv, v)]
    gate = None
    if gate_proj is not None:
        gate = Axis("heads", heads, 1 if gate_proj[1] == "head" else v_dim)
    ops: list[Op] = [*(norms if norms is not None else (norm("input_layernorm", h),))]
    ops.append(linear("qkv", h, parts, component="attention", bias=qkv_bias))
    if gate is not None and gate_proj is not None:
        ops.append(linear("output_gate", h, [(f"{module}.{gate_proj[0]}", gate)], component="attention"))
    made = [("q_norm", q)] if reuse_kv else [("q_norm", q), ("k_norm", k)]
    if qk_norm == "head":
        ops += [head_norm(f"{module}.{n}", a, bias=qk_norm_bias) for n, a in made]
    elif qk_norm == "full":
        ops += [norm(f"{module}.{n}", a, bias=qk_norm_bias) for n, a in made]
    if rotary:
        turned = tuple(a for _, a in made)
        ops.append(Elementwise("rotary", role="rotary", reads=turned, writes=turned))
    ops.append(
        Attention(
            "core_attention", heads=q, kv_heads=k, v_width=v_dim, window=window, chunk=chunk, causal=causal, top_k_keys=top_k_keys
        )
    )
    if output_gate or gate is not None:
        by = gate if gate is not None else o
        ops.append(Elementwise("attention_gate", role="gate", reads=(o, by), writes=(o,), saved=(o, by)))
    if inner_norm is not None:
        ops.append(norm(f"{module}.{inner_norm}", o))
    ops += [linear("out", o, [(no, h)], component="attention", bias=out_bias), residual("attention_residual", h), *extra]
    limit = window if window is not None else chunk
    cache: tuple[CacheTensor, ...] = ()
    if with_cache and not reuse_kv:
        cache = (CacheTensor("k", k, limit_tokens=limit), CacheTensor("v", v, limit_tokens=limit))
    return Block(kind, tuple(ops), cache_per_token=(*cache, *extra_cache), specificity=specificity)


def mla_block(
    *,
    hidden: int,
    heads: int,
    q_lora_rank: int | None,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    kind: str = "mla",
    module: str = "self_attn",
    bias: bool = False,
    extra: Sequence[Op] = (),
    extra_cache: Sequence[CacheTensor] = (),
    top_k_keys: int | None = None,
    specificity: int = 0,
) -> Block:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1).

    The cache is one latent of kv_lora_rank + qk_rope_head_dim per token, held whole by every tensor-parallel rank.
    ``extra`` ops (an indexer) run before the attention.
    """
    h = hidden_axis(hidden)
    qk = qk_nope_head_dim + qk_rope_head_dim
    q, o = Axis("heads", heads, qk), Axis("heads", heads, v_head_dim)
    kv_rank = Axis("latent", kv_lora_rank)
    kv_a = Axis("latent", kv_lora_rank + qk_rope_head_dim)
    up = Axis("heads", heads, qk_nope_head_dim + v_head_dim)
    ops: list[Op] = [norm("input_layernorm", h)]
    if q_lora_rank:
        q_rank = Axis("latent", q_lora_rank)
        ops += [
            linear(
                "qkv_down",
                h,
                [(f"{module}.q_a_proj", q_rank), (f"{module}.kv_a_proj_with_mqa", kv_a)],
                component="attention",
                bias=bias,
            ),
            norm(f"{module}.q_a_layernorm", q_rank),
            linear("q_up", q_rank, [(f"{module}.q_b_proj", q)], component="attention"),
        ]
    else:
        ops.append(linear("q", h, [(f"{module}.q_proj", q)], component="attention"))
        ops.append(linear("kv_down", h, [(f"{module}.kv_a_proj_with_mqa", kv_a)], component="attention", bias=bias))
    ops += [
        norm(f"{module}.kv_a_layernorm", kv_rank),
        linear("kv_up", kv_rank, [(f"{module}.kv_b_proj", up)], component="attention"),
        Elementwise("rotary", role="rotary", reads=(q, q), writes=(q, q)),
        *extra,
        Attention(
            "core_attention", heads=q, kv_heads=Axis("heads", heads, qk), v_width=v_head_dim,
            latent=kv_lora_rank + qk_rope_head_dim, latent_v=kv_lora_rank, top_k_keys=top_k_keys,
        ),
        linear("out", o, [(f"{module}.o_proj", h)], component="attention", bias=bias),
        residual("attention_residual", h),
    ]  # fmt: skip
    return Block(kind, tuple(ops), cache_per_token=(CacheTensor("latent", kv_a), *extra_cache), specificity=specificity)


def mlp_block(
    *,
    hidden: int,
    intermediate: int,
    gated: bool = True,
    bias: bool = False,
    kind: str = "dense",
    module: str = "mlp",
    norms: Sequence[Op] | None = None,
    with_residual: bool = True,
    component: Component = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    specificity: int = 0,
    extra: Sequence[Op] = (),
    inner_norm: str | None = None,
) -> Block:
    """A dense feed-forward with its norm and residual: gated (three matrices) or plain (two).

    ``extra`` ops follow; ``inner_norm`` names a norm in front of the last matrix.
    """
    h = hidden_axis(hidden)
    ops: list[Op] = [*(norms if norms is not None else (norm("post_attention_layernorm", h),))]
    ops += mlp_ops(
        hidden=hidden, intermediate=intermediate, gated=gated, bias=bias, module=module, component=component, names=names
    )
    if inner_norm is not None:
        ops.insert(-1, norm(f"{module}.{inner_norm}", Axis("ffn", intermediate)))
    if with_residual:
        ops.append(residual("mlp_residual", h))
    return Block(kind, (*ops, *extra), specificity=specificity)


def mlp_ops(
    *, hidden: int, intermediate: int, gated: bool, bias: bool = False, module: str = "mlp", component: Component = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> tuple[Op, ...]:  # fmt: skip
    """The GEMMs and activation of a feed-forward, without norm and residual; op names carry the module's."""
    h, f = hidden_axis(hidden), Axis("ffn", intermediate)
    gate, up, down = (f"{module}.{n}" for n in names)
    parts = [(gate, f), (up, f)] if gated else [(up, f)]
    first = (f, f) if gated else (f,)
    return (
        linear(f"{module}.up", h, parts, component=component, bias=bias),
        Elementwise(f"{module}.activation", role="activation", reads=first, writes=(f,), saved=first),
        linear(f"{module}.down", f, [(down, h)], component=component, bias=bias),
    )


def moe_block(
    *,
    hidden: int,
    experts: int,
    top_k: int,
    expert_intermediate: int,
    gated: bool = True,
    expert_bias: bool = False,
    shared_intermediate: int = 0,
    shared_gate: bool = False,
    shared_gated_mlp: bool = True,
    router_bias: bool = False,
    router_correction: bool = False,
    kind: str = "moe",
    module: str = "mlp",
    norms: Sequence[Op] | None = None,
    with_residual: bool = True,
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    extra: Sequence[Op] = (),
    specificity: int = 0,
) -> Block:
    """Router, dispatch, routed experts, combine and the shared expert of total width ``shared_intermediate``.

    ``module`` "": router and experts sit in the layer itself.
    ``router_correction``: a score-correction vector of one value per expert (counted as a parameter).
    ``shared_gate``: a scalar gate on the shared expert (one vector of hidden size).
    """
    h = hidden_axis(hidden)
    e, ef = Axis("experts", experts), Axis("expert_ffn", expert_intermediate)
    logits = Axis("latent", experts)
    inside = f"{module}." if module else ""
    gate, up, down = (f"{inside}experts.{n}" for n in expert_names)
    first = (ef, ef) if gated else (ef,)
    up_parts = [(gate, ef), (up, ef)] if gated else [(up, ef)]

    def expert_weights(k: Axis, parts: Sequence[tuple[str, Axis]]) -> tuple[Weight, ...]:
        out = [Weight(m, (e, k, n), "experts") for m, n in parts]
        if expert_bias:
            out += [Weight(f"{m}.bias", (e, n), "experts", linear=False) for m, n in parts]
        return tuple(out)

    router = linear("router", h, [(f"{inside}gate", logits)], component="router", bias=router_bias, precise=True)
    ops: list[Op] = [*(norms if norms is not None else (norm("post_attention_layernorm", h),)), router]
    if router_correction:
        ops.append(
            Bare(
                "router_correction",
                weights=(Weight(f"{inside}gate.e_score_correction_bias", (logits,), "router", linear=False),),
            )
        )
    ops += [
        Elementwise("permute", role="permute", reads=(h,), writes=(h,), top_k=top_k),
        TokenExchange("dispatch", direction="dispatch", experts=e, top_k=top_k, width=h),
        ExpertGemm("experts.up", experts=e, top_k=top_k, k=h, n=first, weights=expert_weights(h, up_parts)),
        Elementwise("experts.activation", role="activation", reads=first, writes=(ef,), saved=first, top_k=top_k),
        ExpertGemm("experts.down", experts=e, top_k=top_k, k=ef, n=(h,), weights=expert_weights(ef, [(down, h)])),
        TokenExchange("combine", direction="combine", experts=e, top_k=top_k, width=h),
        Elementwise("unpermute", role="permute", reads=(h,), writes=(h,), top_k=top_k),
    ]
    if shared_intermediate:
        ops += mlp_ops(
            hidden=hidden,
            intermediate=shared_intermediate,
            gated=shared_gated_mlp,
            module=f"{inside}shared_experts",
            component="shared_experts",
        )
        if shared_gate:
            one = Axis("latent", 1)
            ops.append(linear("shared_gate", h, [(f"{inside}shared_expert_gate", one)], component="shared_experts", precise=True))
        ops.append(Elementwise("shared_add", role="residual", reads=(h, h), writes=(h,)))
    ops += extra
    if with_residual:
        ops.append(residual("moe_residual", h))
    return Block(kind, tuple(ops), specificity=specificity)


def embedding_block(*, vocab: int, hidden: int, extra: Sequence[Op] = (), module: str = "embed_tokens") -> Block:
    """The token embedding (and, in ``extra``, position tables)."""
    v, h = Axis("vocab", vocab), hidden_axis(hidden)
    table = Lookup("embedding", rows=v, width=h, weights=(Weight(module, (v, h), "embedding", linear=False),))
    return Block("embedding", (table, *extra))


def head_block(
    *,
    vocab: int,
    hidden: int,
    tied: bool,
    final_norm: Elementwise | None = None,
    bias: bool = False,
    module: str = "lm_head",
    **kw: Any,
) -> Block:
    """Final norm, vocabulary projection and loss. A tied head owns no matrix of its own."""
    v, h = Axis("vocab", vocab), hidden_axis(hidden)
    weights = linear_weights(h, [(module, v)], bias=bias, component="head")
    if tied:
        weights = tuple(w for w in weights if not w.linear)
    head = Gemm("lm_head", k=h, n=(v,), precise=True, weights=weights)
    first = final_norm if final_norm is not None else norm("norm", h)
    return Block("head", (first, head, Loss("loss", vocab=v)), **kw)
