"""What a training record's ``settings`` say about the software, in the record format's own words.

Each setting of the format is either mapped to a field of :class:`~autoparallel_core.spec.workload.Software`, or known
to have no effect on the model, or noted as not understood.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.cost.recompute import MODULES

KERNELS = ("unfused", "flash2", "fused")
ELEMENTWISE = ("unfused", "partly-fused", "eager", "compiled", "fused")
CP_COMM = ("p2p", "all_gather", "a2a")
SCHEDULES = {
    "1f1b": "1f1b", "1f1b-interleaved": "1f1b", "interleaved": "1f1b", "gpipe": "gpipe", "afab": "gpipe",
    "zbb": "zero_bubble", "zb1p": "zero_bubble", "zbv": "zero_bubble", "zero_bubble": "zero_bubble",
    "dualpipe": "dualpipe_v", "dualpipe (bidirectional)": "dualpipe_v", "dualpipev": "dualpipe_v", "dualpipe_v": "dualpipe_v",
}  # fmt: skip
RECIPES = {
    "fp8-cs": "current", "fp8-mx": "mxfp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "blockwise": "blockwise", "delayed": "delayed",
    "hybrid delayed scaling": "delayed", "tensorwise": "current", "rowwise": "rowwise", "current": "current",
}  # fmt: skip
HARMLESS = frozenset({
    "assumed", "mp_mode", "moe_forced_balance", "torch_compile", "kernels", "interconnect", "nvlink_domain", "zero1_group",
    "hybrid_zero", "optimizer_cpu_offload", "delay_wgrad", "memory_kind",
})  # fmt: skip
"""Read elsewhere, or without a term of their own."""
MODULE_WORDS = {
    "core attention": "core_attn", "rmsnorm": "layernorm", "layernorm": "layernorm", "mla up": "mla_up_proj",
    "op-level": "op", "per-op": "op",
}  # fmt: skip
"""Free text of ``recompute_detail`` → module."""


def _flag(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() not in {"", "false", "none", "off", "no"})


def software_changes(settings: Mapping[str, Any], num_layers: int) -> tuple[dict[str, Any], list[str]]:
    """Fields of Software that the settings state, and notes about what was not understood."""
    out: dict[str, Any] = {}
    notes: list[str] = []
    s = {k: v for k, v in settings.items() if v is not None}

    def choose(key: str, known: Sequence[str]) -> None:
        if key in s:
            if s[key] in known:
                out[key] = s[key]
            else:
                notes.append(f"{key} '{s[key]}' is not one of {', '.join(known)}; the engine's default is taken")

    choose("attention_kernel", KERNELS)
    choose("elementwise", ELEMENTWISE)
    choose("cp_comm", CP_COMM)
    for field, keys in (
        ("dp_overlap", ("overlap_grad_reduce", "overlap_param_gather", "dp_overlap")),
        ("tp_overlap", ("tp_comm_overlap", "async_tp", "tp_overlap")),
        ("ep_overlap", ("moe_a2a_overlap", "ep_overlap")),
        ("p2p_overlap", ("overlap_p2p", "p2p_overlap")),
        ("launch_blocking", ("cuda_launch_blocking", "launch_blocking")),
        ("embedding_as_layer", ("pp_embedding_as_layer", "embedding_as_layer")),
        ("precision_aware_optimizer", ("precision_aware_optimizer",)),
    ):
        for key in keys:
            if key in s:
                out[field] = _flag(s[key])
    if dispatcher := _dispatcher(s):
        out["dispatcher"] = dispatcher
    if graph := _cuda_graph(s):
        out["cuda_graph"] = graph
    for key in ("schedule", "pp_schedule", "pipeline_schedule"):
        if key in s:
            name = SCHEDULES.get(str(s[key]).lower())
            if name:
                out["pipeline_schedule"] = name
            else:
                notes.append(f"schedule '{s[key]}' has no formula here; 1F1B is taken")
    for key in ("precision_recipe", "float8", "fp8"):
        if key in s and (recipe := RECIPES.get(str(s[key]).split(",")[0].strip().lower())):
            out["low_precision_recipe"] = recipe
    if "fp32_grad_accum" in s:
        out["grad_dtype"] = "fp32" if _flag(s["fp32_grad_accum"]) else "bf16"
    elif str(s.get("mp_mode", "")).upper() == "PURE":
        out["grad_dtype"] = "bf16"
    if isinstance(s.get("cpu_offloading_num_layers"), int):
        out["activation_offload_layers"] = s["cpu_offloading_num_layers"]
    elif _flag(s.get("activation_cpu_offload")):
        out["activation_offload_layers"] = num_layers
    unread = set(s) - HARMLESS - READ
    notes += [f"setting {k} = {s[k]!r} is not part of the model" for k in sorted(unread) if not re.fullmatch(r"use_\w+_fsdp", k)]
    return out, notes


READ = frozenset({
    "attention_kernel", "elementwise", "overlap_grad_reduce", "overlap_param_gather", "dp_overlap", "tp_comm_overlap", "async_tp",
    "tp_overlap", "moe_a2a_overlap", "ep_overlap", "overlap_p2p", "p2p_overlap", "cuda_launch_blocking", "launch_blocking",
    "pp_embedding_as_layer", "embedding_as_layer", "precision_aware_optimizer", "dispatcher", "moe_flex_dispatcher_backend",
    "deepep", "cuda_graph_impl", "cuda_graph_scope", "schedule", "pp_schedule", "pipeline_schedule", "precision_recipe", "float8",
    "fp8", "fp32_grad_accum", "cp_comm", "cpu_offloading_num_layers", "activation_cpu_offload",
})  # fmt: skip


def _dispatcher(s: Mapping[str, Any]) -> str | None:
    for key in ("dispatcher", "moe_flex_dispatcher_backend"):
        if s.get(key) in {"alltoall", "allgather", "deepep", "hybridep"}:
            return str(s[key])
    if _flag(s.get("deepep")) or "deepep" in str(s.get("kernels", "")).lower():
        return "deepep"
    return None


def _cuda_graph(s: Mapping[str, Any]) -> str | None:
    """The whole iteration, part of each layer, or nothing; None when neither key is there."""
    if "cuda_graph_impl" not in s and "cuda_graph_scope" not in s:
        return None
    impl, scope = s.get("cuda_graph_impl"), s.get("cuda_graph_scope")
    scopes = [scope] if isinstance(scope, str) else [x for x in scope or () if x != "-"]
    if impl == "none" or (impl is None and not scopes):
        return "none"
    return "full_iteration" if impl == "full_iteration" or "full_iteration" in scopes else "partial"


_LAYERS_PER_STAGE = r"(\d+) layers? per (\(?virtual\)? )?stage"


def recompute_modules(detail: Any) -> tuple[tuple[str, ...] | None, list[str]]:
    """Selective modules (None: not stated), and notes."""
    if detail is None or detail == []:
        return None if detail is None else (), []
    if isinstance(detail, str):
        text = detail.lower()
        if re.search(_LAYERS_PER_STAGE, text):
            return None, []
        found = tuple(dict.fromkeys(module for words, module in MODULE_WORDS.items() if words in text))
        if found or text.startswith("full"):
            return found or None, []
        return None, [f"recompute detail '{detail}' is not understood; the engine's default is taken"]
    names = [str(x) for x in detail if x != "-"]
    known = tuple(n for n in names if n in MODULES)
    return known, [f"recompute module '{n}' has no term here" for n in names if n not in MODULES]


def recomputed_layers(detail: Any, vpp: int) -> int:
    """Layers of a pipeline stage under full recompute, 0 for all: a number stated per virtual stage counts ``vpp`` times.

    "per (virtual) stage" leaves open which; it is the pipeline stage. Published runs of one layer a virtual stage that say
    so are as fast as those without recompute, which they could not be if each of their one-layer chunks ran twice.
    """
    m = re.search(_LAYERS_PER_STAGE, detail.lower()) if isinstance(detail, str) else None
    return int(m[1]) * (vpp if m[2] == "virtual " else 1) if m else 0


LINK_GBIT = {"omnipath": 100.0}
"""Rate of a link that a text names by kind only, Gbit/s (Intel Omni-Path 100 series)."""


def nic_bytes_per_s(text: str, gpus_per_node: int) -> float | None:
    """Bytes per second, GPU and direction that a free text states for the network, None when it gives no figure.

    ``4x100Gb`` and ``1600Gbps per node`` are bits and count for the node; ``IB 50GB/s`` is bytes and per GPU;
    ``8x50GB/s`` is bytes and for the node.
    """
    part = next((p for p in re.split(r"[,;]", text) if not re.search(r"nvlink", p, re.IGNORECASE)), text)
    if m := re.search(r"(?:(\d+)\s*x\s*)?([\d.]+)\s*GB/s", part):
        return float(m[2]) * 1e9 * (int(m[1]) / gpus_per_node if m[1] else 1.0)
    if m := re.search(r"(?:(\d+)\s*x\s*)?([\d.]+)\s*Gb", part):
        return int(m[1] or 1) * float(m[2]) * 1e9 / 8 / gpus_per_node
    if m := re.search(r"(\d+)\s*(\w+) links?\s*(?:/|per )node", part, re.IGNORECASE):
        rate = LINK_GBIT.get(m[2].lower())
        return int(m[1]) * rate * 1e9 / 8 / gpus_per_node if rate else None
    return None
