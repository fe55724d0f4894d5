"""Nemotron-H and Nemotron-3: every position of the stack is one sub-layer, named by a character or a word.

Sources: Nemotron-H (arXiv 2504.03624) and the Nemotron-3 technical report (latent mixture of experts: the routed
experts work in a space of ``moe_latent_size``, between two projections).
"""

from __future__ import annotations

from typing import Literal

from attrs import evolve

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block, Layer
from autoparallel_core.spec.blocks import attention_block, hidden_axis, linear, mlp_block, mlp_ops, moe_block, norm, residual
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Op
from autoparallel_mamba.fields import conv_dtype, ssm_dtype
from autoparallel_mamba.scans import Mamba2, mamba2_block

SPECIFICITY = 10
Kind = Literal["mamba", "attention", "mlp", "moe"]
_CHARACTERS: dict[str, Kind] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_WORDS: dict[str, Kind] = {
    "mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention", "mlp": "mlp",
    "moe": "moe",
}  # fmt: skip


def kinds(config: ConfigView, pattern_field: str, list_field: str) -> tuple[Kind, ...]:
    """The kinds of a stack from its pattern string or its list of words; empty when the config has neither."""
    pattern, words = config.get(pattern_field), config.get(list_field)
    if words is None and pattern is None:
        return ()
    field, entries, known = (pattern_field, pattern, _CHARACTERS) if words is None else (list_field, words, _WORDS)
    if not isinstance(entries, str | list) or not entries:
        raise SpecError(f"{config.name}: config field '{field}' must name one kind per sub-layer, not {entries!r}")
    bad = sorted({str(e) for e in entries if e not in known})
    if bad:
        raise SpecError(f"{config.name}: config field '{field}' has {', '.join(bad)}; known: {', '.join(known)}")
    return tuple(known[e] for e in entries)


def stack(config: ConfigView) -> tuple[Kind, ...]:
    """The decoder's sub-layers. Raises SpecError when they are missing or their number contradicts num_hidden_layers."""
    found = kinds(config, "hybrid_override_pattern", "layers_block_type")
    if not found:
        raise SpecError(f"{config.name}: config field 'hybrid_override_pattern' is missing (also looked for layers_block_type)")
    n = config.get("num_hidden_layers")
    if n is not None and n != len(found):
        raise SpecError(f"{config.name}: num_hidden_layers is {n}, but the pattern of sub-layers has {len(found)}")
    return found


def sub_layer(config: ConfigView, kind: Kind, *, module: str = "mixer") -> Block:
    """One sub-layer with its norm and residual."""
    if kind == "mamba":
        return mamba2_block(_mamba(config), module=module, norm_module="norm", specificity=SPECIFICITY)
    if kind == "attention":
        return _attention(config, module)
    return _mlp(config, module) if kind == "mlp" else _experts(config, module)


def mixer(config: ConfigView, layer: int) -> Block:
    found = stack(config)
    config.read.update(_ALL_FIELDS)
    return sub_layer(config, found[layer])


def mtp_layers(config: ConfigView) -> tuple[Layer, ...]:
    """Prediction blocks: norms and a 2h → h projection, the sub-layers of ``mtp_*`` and a norm; the head is shared."""
    n = config.count("num_nextn_predict_layers")
    found = kinds(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    if not n:
        return ()
    if not found:
        found = ("attention", "moe")
        config.note("config has no mtp_hybrid_override_pattern: an attention and an expert sub-layer are assumed per MTP block")
    h = hidden_axis(config.size("hidden_size"))
    first = Block(
        "mtp-in",
        (norm("enorm", h), norm("hnorm", h), linear("eh_proj", Axis("hidden", 2 * h.size), [("eh_proj", h)], component="mtp")),
    )
    last = Block("mtp-head", (norm("final_layernorm", h),))
    return tuple(Layer((first, *(sub_layer(config, k) for k in found), last)) for _ in range(n))


_ALL_FIELDS = frozenset(
    {
        "intermediate_size", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
        "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "expand", "mamba_hidden_act", "mlp_hidden_act",
        "time_step_rank", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min", "num_logits_to_keep",
        "use_mamba_kernels", "moe_shared_expert_overlap", "sliding_window",
    }
)  # fmt: skip
"""Fields that every variant of the type carries, whether or not its stack has the sub-layers they size."""


def _mamba(config: ConfigView) -> Mamba2:
    return Mamba2(
        hidden=config.size("hidden_size"),
        heads=config.size("mamba_num_heads"),
        head_dim=config.size("mamba_head_dim"),
        groups=config.size("n_groups", "mamba_n_groups"),
        state=config.size("ssm_state_size", "mamba_d_state"),
        kernel=config.size("conv_kernel", "mamba_d_conv"),
        chunk=config.size("chunk_size", "mamba_chunk_size"),
        conv_bias=config.flag("use_conv_bias", "mamba_conv_bias", default=True),
        in_bias=config.flag("use_bias", "mamba_proj_bias"),
        out_bias=config.flag("use_bias", "mamba_proj_bias"),
        state_dtype=ssm_dtype(config),
        conv_dtype=conv_dtype(config),
    )


def _attention(config: ConfigView, module: str) -> Block:
    heads, hidden = config.size("num_attention_heads"), config.size("hidden_size")
    bias = config.flag("attention_bias")
    return attention_block(
        hidden=hidden,
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=heads),
        head_dim=config.size("head_dim", default=hidden // heads),
        module=module,
        qkv_bias=bias,
        out_bias=bias,
        rotary=False,
        norms=(norm("norm", hidden_axis(hidden)),),
        specificity=SPECIFICITY,
    )


def _mlp(config: ConfigView, module: str) -> Block:
    hidden = config.size("hidden_size")
    return mlp_block(
        hidden=hidden, intermediate=config.size("intermediate_size"), gated=False, bias=config.flag("mlp_bias"), module=module,
        norms=(norm("norm", hidden_axis(hidden)),), specificity=SPECIFICITY,
    )  # fmt: skip


def _experts(config: ConfigView, module: str) -> Block:
    hidden = config.size("hidden_size")
    latent = config.count("moe_latent_size")
    shared = config.count("n_shared_experts") * config.count("moe_shared_expert_intermediate_size")
    block = moe_block(
        hidden=latent or hidden,
        experts=config.size("num_experts"),
        top_k=config.size("num_experts_per_tok"),
        expert_intermediate=config.size("moe_intermediate_size"),
        gated=False,
        module=module,
        norms=(),
        with_residual=False,
        specificity=SPECIFICITY,
    )
    return _with_latent(block, hidden=hidden, latent=latent, shared=shared, module=module, bias=config.flag("mlp_bias"))


def _with_latent(block: Block, *, hidden: int, latent: int, shared: int, module: str, bias: bool) -> Block:
    """Put norm, full-width router, latent projections, shared expert and residual around the routed experts."""
    h = hidden_axis(hidden)
    router = linear("router", h, [(f"{module}.gate", block.ops[0].weights[0].axes[1])], component="router", precise=True)
    before: list[Op] = []
    after: list[Op] = []
    if latent:
        low = hidden_axis(latent)
        before.append(linear("latent_down", h, [(f"{module}.fc1_latent_proj", low)], component="mlp", bias=bias))
        after.append(linear("latent_up", low, [(f"{module}.fc2_latent_proj", h)], component="mlp", bias=bias))
    ops: list[Op] = [norm("norm", h), router, *before, *block.ops[1:], *after]
    if shared:
        ops += mlp_ops(
            hidden=hidden,
            intermediate=shared,
            gated=False,
            bias=bias,
            module=f"{module}.shared_experts",
            component="shared_experts",
        )
    return evolve(block, kind="moe-latent" if latent else "moe", ops=(*ops, residual("moe_residual", h)))
