"""One layer's mixture of experts from a config."""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import hidden_axis, mlp_block, moe_block, norm
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Bare, Elementwise, Op, Weight
from autoparallel_core.spec.standard import ffn_claim, is_expert_layer, is_gated, layer_norms, num_experts, per_layer_input


def experts(config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
    """The expert layer (with a dense one beside it where the type has both), None when the layer is dense."""
    specificity = ffn_claim(config)
    if specificity is None or not is_expert_layer(config, layer):
        return None
    hidden, gated, n = config.size("hidden_size"), is_gated(config), num_experts(config)
    width = expert_width(config)
    beside = bool(config.trait("parallel_experts", default=False))
    moe = moe_block(
        hidden=hidden,
        experts=n,
        top_k=top_k(config, n),
        expert_intermediate=width,
        gated=gated,
        expert_bias=bool(config.trait("expert_bias", default=False)),
        shared_intermediate=shared_width(config, width),
        shared_gate=bool(config.trait("shared_gate", default=False)),
        shared_gated_mlp=gated,
        router_bias=bool(config.trait("router_bias", default=False)),
        router_correction=bool(config.trait("router_correction", default=False)),
        module=str(config.trait("moe_module", default="mlp")),
        norms=_beside_norms(config) if beside else layer_norms(config, "ffn"),
        with_residual=not beside,
        extra=(*_router_scales(config, n), *per_layer_input(config)),
        specificity=specificity,
    )
    if not beside:
        return moe
    dense = mlp_block(
        hidden=hidden,
        intermediate=config.size("intermediate_size"),
        gated=gated,
        norms=layer_norms(config, "ffn"),
        specificity=specificity,
    )
    return dense, moe


def top_k(config: ConfigView, experts: int) -> int:
    """Experts per token; a list (per layer or modality) counts its largest. Raises SpecError beyond the experts there are."""
    k = config.largest("num_experts_per_tok") or config.size("num_experts_per_tok")
    if k > experts:
        raise SpecError(f"{config.name}: num_experts_per_tok {k} exceeds the {experts} experts")
    return k


def expert_width(config: ConfigView) -> int:
    """Width of one routed expert: its own field, else ``intermediate_size`` (which then is the experts')."""
    return config.largest("moe_intermediate_size") or config.size("intermediate_size")


def shared_width(config: ConfigView, expert: int) -> int:
    """Total width of the shared experts; 0 when there are none. A stated total wins over a count of experts."""
    total = config.get("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    each = config.get("shared_intermediate_size", "share_expert_dim")
    counts = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    count = config.largest(*counts) if config.get(*counts) is not None else None
    if total is not None:
        return _whole(config, "shared_expert_intermediate_size", total)
    if count is not None:
        return count * _whole(config, "shared_intermediate_size", each or expert)
    if each is not None:
        return _whole(config, "shared_intermediate_size", each)
    return expert if config.trait("shared_expert", default=False) else 0


def _whole(config: ConfigView, field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(f"{config.name}: config field '{field}' must be a whole number, not {value!r}")
    return value


def _beside_norms(config: ConfigView) -> tuple[Elementwise, ...]:
    """Norms of experts that run beside a dense feed-forward: one in front, one behind, one behind the dense part."""
    h = hidden_axis(config.size("hidden_size"))
    names = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
    return tuple(norm(n, h) for n in names)


def _router_scales(config: ConfigView, experts: int) -> tuple[Op, ...]:
    """Learned scales of the router's input and of each expert's output."""
    if not config.trait("router_scales", default=False):
        return ()
    scales = (
        Weight("router.scale", (hidden_axis(config.size("hidden_size")),), "router", linear=False),
        Weight("router.per_expert_scale", (Axis("latent", experts),), "router", linear=False),
    )
    return (Bare("router_scales", weights=scales),)
