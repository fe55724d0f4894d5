"""One layer's mixture of experts from a config."""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import mlp_block, moe_block
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.standard import ffn_claim, is_expert_layer, is_gated, layer_norms, num_experts


def experts(config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
    """The expert layer (with a dense one beside it where the type has both), None when the layer is dense."""
    specificity = ffn_claim(config)
    if specificity is None or not is_expert_layer(config, layer):
        return None
    hidden, gated = config.size("hidden_size"), is_gated(config)
    top_k = config.get("num_experts_per_tok")
    top_k = max(top_k) if isinstance(top_k, list) and top_k else config.size("num_experts_per_tok")
    width = expert_width(config)
    n = num_experts(config)
    if top_k > n:
        raise SpecError(f"{config.name}: num_experts_per_tok {top_k} exceeds the {n} experts")
    module = str(config.trait("moe_module", default=config.trait("module", default="mlp")))
    moe = moe_block(
        hidden=hidden,
        experts=n,
        top_k=top_k,
        expert_intermediate=width,
        gated=gated,
        expert_bias=bool(config.trait("expert_bias", default=False)),
        shared_intermediate=shared_width(config, width),
        shared_gate=bool(config.trait("shared_gate", default=False)),
        shared_gated_mlp=gated,
        router_bias=bool(config.trait("router_bias", default=False)),
        module=module,
        norms=layer_norms(config, "ffn"),
        specificity=specificity,
    )
    if not config.flag("enable_moe_block"):
        return moe
    return (mlp_block(hidden=hidden, intermediate=config.size("intermediate_size"), gated=gated, specificity=specificity), moe)


def expert_width(config: ConfigView) -> int:
    """Width of one routed expert: its own field, else ``intermediate_size`` (which then is the experts')."""
    v = config.get("moe_intermediate_size")
    if isinstance(v, list) and v:
        return int(max(v))
    return config.size("moe_intermediate_size") if v else config.size("intermediate_size")


def shared_width(config: ConfigView, expert: int) -> int:
    """Total width of the shared experts; 0 when there are none. A stated total wins over a count of experts."""
    total = config.get("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")
    count = config.get("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    per_expert = config.get("share_expert_dim")
    if total is not None:
        return int(total)
    if count is not None:
        return int(count) * int(per_expert or expert)
    if per_expert is not None:
        return int(per_expert)
    return expert if config.trait("shared_expert", default=False) else 0
