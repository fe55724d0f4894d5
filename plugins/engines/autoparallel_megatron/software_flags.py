"""What Megatron's flags say about overlap, kernels, precision and recomputation: fields of Software."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.cost.recompute import MODULES
from autoparallel_core.launch.flags import Parsed

FP8 = {
    "delayed": ("fp8", "delayed"), "tensorwise": ("fp8", "current"), "mxfp8": ("mxfp8", "mxfp8"),
    "blockwise": ("fp8", "blockwise"), "custom": ("fp8", None),
}  # fmt: skip
"""``--fp8-recipe`` → precision and recipe."""
EXCHANGES = {"p2p": "p2p", "all_gather": "all_gather", "a2a": "a2a"}
"""``--cp-comm-type`` → Software.cp_comm."""
RECIPE_FLAGS = {"delayed": "delayed", "current": "tensorwise", "mxfp8": "mxfp8", "blockwise": "blockwise"}


def software_of(
    p: Parsed, environment: Mapping[str, str], *, vpp: int, overlap_known: bool, bridge: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of Software that the flags state, and what else they say (``precision``)."""
    out: dict[str, Any] = {
        "dp_overlap": bool(p.get("overlap_grad_reduce", default=bridge)),
        "tp_overlap": bool(p.get("tp_overlap", default=False)),
        "p2p_overlap": bool(p.get("p2p_overlap", default=True)),
    }
    more: dict[str, Any] = {}
    _expert_overlap(p, out, vpp=vpp, known=overlap_known)
    _precision(p, out, more)
    if dispatcher := _dispatcher(p):
        out["dispatcher"] = dispatcher
    if (exchange := context_exchange(p)) in EXCHANGES:
        out["cp_comm"] = EXCHANGES[exchange]
    if kernel := _attention(p):
        out["attention_kernel"] = kernel
    if passes := _elementwise(p):
        out["elementwise"] = passes
    if graph := _graphs(p):
        out["cuda_graph"] = graph
    if p.get("precise_opt", default=False):
        out["precision_aware_optimizer"] = True
    if p.get("account_embedding", default=False) and p.get("account_loss", default=False):
        out["embedding_as_layer"] = True
    if p.get("offloaded_layers"):
        out["activation_offload_layers"] = p.get("offloaded_layers")
    if environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        out["launch_blocking"] = True
    modules = tuple(m for m in p.get("recompute_modules") or () if m in MODULES)
    if modules:
        out["recompute_modules"] = modules
    return out, more


def context_exchange(p: Parsed) -> str | None:
    """The one ``--cp-comm-type`` of all layers; several, or a hierarchical one, as they are written."""
    kinds = p.get("cp_comm_type") or []
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    return None if not kinds else kinds[0] if len(set(kinds)) == 1 else " ".join(kinds)


def _expert_overlap(p: Parsed, out: dict[str, Any], *, vpp: int, known: bool) -> None:
    """Stated as on or off, unless the flag is exactly where the engine's own choice would set it."""
    asked = bool(p.get("ep_overlap", default=False))
    allowed = p.get("ep", 1) > 1 and (p.get("pp", 1) == 1 or vpp > 1) and p.get("recompute_granularity") != "full"
    if asked != (allowed and known):
        out["ep_overlap"] = asked


def _precision(p: Parsed, out: dict[str, Any], more: dict[str, Any]) -> None:
    text = str(p.get("mixed_precision", ""))
    if p.get("fp4_format") or "nvfp4" in text:
        more["precision"], out["low_precision_recipe"] = "nvfp4", "nvfp4"
    elif p.get("fp8_format") or "fp8" in text:
        recipe = str(p.get("fp8_recipe") or _named(text))
        precision, name = FP8.get(recipe, ("fp8", None))
        more["precision"] = precision
        if name:
            out["low_precision_recipe"] = name
    elif p.get("bf16", default=False) or text.startswith("bf16"):
        more["precision"] = "bf16"
    elif p.get("fp16", default=False) or text.startswith("fp16"):
        more["precision"] = "fp16"


def _named(text: str) -> str:
    """Recipe out of a Megatron-Bridge name such as ``bf16_with_fp8_current_scaling_mixed``."""
    for word, recipe in (("mxfp8", "mxfp8"), ("current", "tensorwise"), ("subchannel", "blockwise"), ("blockwise", "blockwise")):
        if word in text:
            return recipe
    return "delayed"


def _dispatcher(p: Parsed) -> str | None:
    kind, backend = p.get("dispatcher"), p.get("flex")
    if p.get("old_deepep", default=False) or (kind == "flex" and backend in {None, "deepep"}):
        return "deepep"
    if kind == "flex":
        return "hybridep" if backend == "hybridep" else "deepep"
    return kind if kind in {"alltoall", "allgather"} else "alltoall" if kind == "alltoall_seq" else None


def _attention(p: Parsed) -> str | None:
    backend = p.get("attention_backend")
    if backend in {"unfused", "local"}:
        return "unfused"
    if backend == "flash" or p.get("use_flash_attn", default=False):
        return "flash2"
    if p.get("transformer_impl") == "local" and backend is None:
        return "unfused"
    return None


FUSIONS = ("swiglu_fusion", "gelu_fusion", "dropout_fusion", "rope_fusion", "persist_layer_norm")
"""Flags that turn a fused element-wise kernel off, by their names here."""


def _elementwise(p: Parsed) -> str | None:
    """Megatron's own layers have fewer fused passes than Transformer Engine's, and none with the fusions turned off."""
    off = sum(not p.get(k, default=True) for k in FUSIONS)
    local = p.get("transformer_impl") == "local"
    if off == 0 and not local:
        return None
    return "unfused" if off >= 2 and local else "partly-fused"


def _graphs(p: Parsed) -> str | None:
    scopes = p.get("cuda_graph_scope") or []
    if p.get("cuda_graph_impl", "none") == "none" and not (
        p.get("enable_cuda_graph", default=False) or p.get("external_cuda_graph", default=False)
    ):
        return None
    return "full_iteration" if "full_iteration" in scopes or p.get("cuda_graph_impl") == "full_iteration" else "partial"
