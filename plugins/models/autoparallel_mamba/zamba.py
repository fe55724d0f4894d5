"""Zamba2: Mamba-2 layers, some of them fed by a transformer block whose weights are shared by all its uses.

Source: Zamba2 (arXiv 2411.15242, section 2). The shared block attends over the concatenation of the stream and the
embedding (width 2h); each use has its own low-rank adapters and its own projection back to the stream. The shared
matrices belong to their first use here: later uses repeat the work, not the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block, CacheTensor
from autoparallel_core.spec.blocks import hidden_axis, linear, norm, residual
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Attention, Axis, Elementwise, Op
from autoparallel_mamba.fields import conv_dtype, ssm_dtype
from autoparallel_mamba.scans import Mamba2, mamba2_block

SPECIFICITY = 10
_PLAIN, _SHARED = frozenset({"mamba", "linear_attention", "m"}), frozenset({"hybrid", "g"})

DEFAULTS: dict[str, Any] = {
    "layers_block_type": (
        ["mamba"] + (["mamba"] * 5 + ["hybrid"]) * 7 + ["mamba"] * 4 + ["hybrid"] + ["mamba"] * 3 + ["hybrid"] + ["mamba"] * 2
    ),
    "num_mem_blocks": 1, "use_shared_attention_adapter": False, "adapter_rank": 128, "use_mem_rope": False,
    "add_bias_linear": False,
}  # fmt: skip
"""What the type's reference implementation takes when a config leaves the field out."""


def mixer(config: ConfigView, layer: int) -> Block:
    kinds = config.get("layers_block_type")
    if not isinstance(kinds, list) or layer >= len(kinds):
        raise SpecError(f"{config.name}: config field 'layers_block_type' must list a kind for each of the layers")
    kind = kinds[layer]
    if kind not in _PLAIN | _SHARED:
        raise SpecError(f"{config.name}: layers_block_type names {kind!r}; known: mamba, hybrid")
    sizes = _mamba(config)
    use = sum(k in _SHARED for k in kinds[:layer])
    shared, cache = _shared_block(config, use) if kind in _SHARED else ((), ())
    block = mamba2_block(sizes, module="mamba", specificity=SPECIFICITY, before=shared)
    return evolve(block, kind="mamba2-shared" if shared else "mamba2", cache_per_token=cache)


def _mamba(config: ConfigView) -> Mamba2:
    hidden, heads = config.size("hidden_size"), config.size("n_mamba_heads")
    inner = config.size("mamba_expand", default=2) * hidden
    if inner % heads:
        raise SpecError(f"{config.name}: the inner width {inner} is not a multiple of n_mamba_heads {heads}")
    config.read.update(
        (
            "mamba_headdim", "use_mamba_kernels", "use_mem_eff_path", "time_step_min", "time_step_max", "time_step_floor",
            "time_step_limit", "num_logits_to_keep", "use_long_context", "attention_hidden_size", "attention_head_dim",
            "num_query_groups", "kv_channels", "hybrid_layer_ids", "use_mem_rope",
        )
    )  # fmt: skip
    return Mamba2(
        hidden=hidden,
        heads=heads,
        head_dim=inner // heads,
        groups=config.size("mamba_ngroups", default=1),
        state=config.size("mamba_d_state"),
        kernel=config.size("mamba_d_conv"),
        chunk=config.size("chunk_size", default=256),
        conv_bias=config.flag("use_conv_bias", default=True),
        in_bias=config.flag("add_bias_linear"),
        out_bias=config.flag("add_bias_linear"),
        state_dtype=ssm_dtype(config),
        conv_dtype=conv_dtype(config),
    )


def _shared_block(config: ConfigView, use: int) -> tuple[tuple[Op, ...], tuple[CacheTensor, ...]]:
    """The shared transformer of the ``use``-th hybrid layer and its key/value cache (each use has its own)."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", default=heads)
    inter = config.size("intermediate_size", default=4 * hidden)
    rank = Axis("latent", config.size("adapter_rank"))
    bias = config.flag("add_bias_linear")
    h, wide = hidden_axis(hidden), Axis("hidden", 2 * hidden)
    width = 2 * hidden // heads
    q, k, f = Axis("heads", heads, width), Axis("kv_heads", kv_heads, width), Axis("ffn", inter)
    module = "shared_transformer"
    qkv = [(f"{module}.self_attn.q_proj", q), (f"{module}.self_attn.k_proj", k), (f"{module}.self_attn.v_proj", k)]
    gate_up = [(f"{module}.feed_forward.gate_up_proj", f)] * 2
    shared: list[Op] = [
        norm(f"{module}.input_layernorm", wide),
        linear("qkv", wide, qkv, component="attention"),
        Attention("core_attention", heads=q, kv_heads=k, v_width=width),
        linear("attention_out", q, [(f"{module}.self_attn.o_proj", h)], component="attention"),
        norm(f"{module}.pre_ff_layernorm", h),
        linear("mlp.up", h, gate_up, component="mlp", bias=bias),
        Elementwise("mlp.activation", role="activation", reads=(f, f), writes=(f,), saved=(f, f)),
        linear("mlp.down", f, [(f"{module}.feed_forward.down_proj", h)], component="mlp", bias=bias),
    ]
    if use >= config.size("num_mem_blocks"):
        shared = [evolve(op, weights=()) for op in shared]
    own: list[Op] = _adapter("mlp_adapter", h, rank, gate_up, component="mlp")
    if config.flag("use_shared_attention_adapter"):
        for part in qkv:
            own += _adapter(f"{part[0].rsplit('.', 1)[1]}_adapter", wide, rank, [part], component="attention")
    own += [linear("linear", h, [("linear", h)], component="attention"), residual("shared_add", h)]
    return (*shared, *own), (CacheTensor("k", k), CacheTensor("v", k))


def _adapter(name: str, source: Axis, rank: Axis, target: Sequence[tuple[str, Axis]], *, component: Any) -> list[Op]:
    """A low-rank update of a shared projection, owned by one use of it."""
    parts = [(f"{name}.1", axis) for _, axis in target]
    return [
        linear(f"{name}.down", source, [(f"{name}.0", rank)], component=component),
        linear(f"{name}.up", rank, parts, component=component),
    ]
