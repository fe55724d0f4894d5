"""A small copy of a module: same structure, fewer layers, narrow tensors; for modules that carry a configuration object."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    import torch

LARGE = 50_000_000
"""Parameters above which a module is not run as it is."""

_SIZES = {
    "vocab_size": 256, "hidden_size": 64, "n_embd": 64, "intermediate_size": 128, "n_inner": 128, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "num_hidden_layers": 2,
    "n_layer": 2, "num_local_experts": 8, "num_experts": 8, "sliding_window": 8, "head_dim": 16, "query_pre_attn_scalar": 16,
    "vocab_size_per_layer_input": 256, "hidden_size_per_layer_input": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
_HEADS = 16


def reduced(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself when it is small; else one of its class made from a reduced copy of its ``config``.

    Raises:
        SpecError: the module is large and has no configuration that its class can be built from.
    """
    import torch

    n = sum(p.numel() for p in module.parameters())
    on_meta = any(p.device.type == "meta" for p in module.parameters())
    if n <= LARGE and not on_meta:
        return copy.deepcopy(module)
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise SpecError(
            f"{type(module).__name__} has {n:,} parameters{' on the meta device' if on_meta else ''} and no configuration to "
            "make a small copy from: name a function that builds one (--reduced pkg.mod:build)"
        )
    small = type(config).from_dict(_fields(config.to_dict()))
    small._attn_implementation = getattr(config, "_attn_implementation", None)
    torch.manual_seed(0)
    made: torch.nn.Module = type(module)(small)
    return made.to(torch.float32).train(module.training)


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    out = dict(fields)
    for key, size in _SIZES.items():
        if isinstance(out.get(key), int) and not isinstance(out[key], bool):
            out[key] = size
    for heads in ("num_attention_heads", "n_head"):
        if isinstance(out.get(heads), int):
            groups = out.get("num_key_value_heads")
            if isinstance(groups, int):
                out["num_key_value_heads"] = _HEADS if groups == out[heads] else _HEADS // 2
            out[heads] = _HEADS
    if isinstance(out.get("layer_types"), list):
        out["layer_types"] = out["layer_types"][:2]
    for key in ("dtype", "torch_dtype"):
        out.pop(key, None)
    return out
