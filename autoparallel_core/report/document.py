"""Answers as JSON documents: plain dicts whose keys carry units. docs/reference/json.md lists every key.

``SCHEMA_VERSION`` rises when a key changes its meaning or goes away; new keys do not raise it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict

from autoparallel_core.report.operators import operators_document
from autoparallel_core.report.stages import stage_document
from autoparallel_core.search.result import MemoryBreakdown, Plan, SearchResult, ServingFigures
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.problem import Constant, EngineSpec, Problem
from autoparallel_core.spec.workload import Workload

SCHEMA_VERSION = 1
NOT_SERVING: Mapping[str, Any] = {
    "warnings": [], "frontier": None, "usable": None, "trade_off": [], "layout_reasons": [], "disaggregated": None,
}  # fmt: skip
"""What only serving answers have."""


def dumps(document: Mapping[str, Any]) -> str:
    """Strict JSON text: no NaN or Infinity (null instead), numpy numbers as plain ones."""
    return json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "item") and not isinstance(value, str | bytes) and not getattr(value, "shape", ()):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(v) for v in value]
    return value


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    gpu = cluster.gpu
    return {
        "gpu": gpu.name,
        "n_gpus": cluster.n_gpus,
        "n_nodes": cluster.n_nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "gpu_memory_bytes": gpu.memory_bytes,
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "peak_flops_per_s": dict(gpu.peak_flops),
        "scale_up_bytes_per_s": gpu.scale_up_bytes_per_s,
        "scale_up_domain": gpu.scale_up_domain,
        "nic_bytes_per_s": gpu.nic_bytes_per_s,
        "host_memory_bytes_per_node": cluster.host_memory_bytes_per_node,
        "tiers": [
            {"name": t.name, "ranks": t.ranks, "bytes_per_s": t.bytes_per_s, "latency_s": t.latency_s, "source": t.source}
            for t in cluster.tiers
        ],
        "overrides": list(cluster.overrides),
        "kinds": [cluster_document(k) for k in cluster.kinds],
    }


def workload_document(workload: Workload) -> dict[str, Any]:
    """The workload's own fields; limits in seconds, lengths in tokens, batches in sequences or requests."""
    fields = {k: v for k, v in asdict(workload, recurse=False).items() if k not in {"software", "settings"}}
    return fields | ({"settings": dict(workload.settings)} if hasattr(workload, "settings") else {})


def engine_document(engine: EngineSpec, version: str, software: Any) -> dict[str, Any]:
    return {"name": engine.name, "version": version, "summary": engine.summary, "software": asdict(software)}


def constant_document(constant: Constant) -> dict[str, Any]:
    return {"value": constant.value, "meaning": constant.meaning, "source": constant.source, "origin": constant.origin}


def memory_document(memory: MemoryBreakdown) -> dict[str, Any]:
    return {
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "margin_bytes": memory.margin_bytes,
        "host_bytes_per_node": memory.host_bytes_per_node,
        "deciding_stage": memory.deciding.stage,
        "stages": [
            {
                "stage": s.stage,
                "layers": s.layers,
                "total_bytes": s.total_bytes,
                "bytes": dict(s.bytes),
                "peak_bytes": s.peak_bytes,
                "overhead_bytes": dict(s.overhead),
                "squeezed_bytes": s.squeezed_bytes,
            }
            for s in memory.stages
        ],
    }


def serving_document(figures: ServingFigures) -> dict[str, Any]:
    plain = asdict(figures)
    for name in ("ttft", "tpot", "e2e_tpot"):
        low, high = plain.pop(f"{name}_interval_s")
        plain |= {f"{name}_low_s": low, f"{name}_high_s": high}
    return plain


def plan_document(plan: Plan, rank: int | None = None) -> dict[str, Any]:
    """One strategy: its notation, its axes, and what it achieves."""
    return {
        "rank": rank,
        "strategy": plan.notation,
        "axes": asdict(plan.strategy),
        "verdict": plan.verdict,
        "tokens_per_s_per_gpu": plan.throughput,
        "cost_s": dict(plan.cost.seconds),
        "total_s": plan.cost.total_s,
        "memory": memory_document(plan.memory),
        "training": asdict(plan.training) if plan.training else None,
        "serving": serving_document(plan.serving) if plan.serving else None,
        "reasons": list(plan.reasons),
        "variants": [str(v) for v in plan.variants],
        "stages": [stage_document(s) for s in plan.stages],
    }


def problem_document(problem: Problem, model: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked. ``model`` is the description that ``models show --json`` prints."""
    return {
        "mode": problem.mode,
        "model": dict(model),
        "cluster": cluster_document(problem.cluster),
        "engine": engine_document(problem.engine, problem.engine_version, problem.software),
        "workload": workload_document(problem.workload),
    }


def envelope(command: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Every document starts with its schema version and the command that wrote it."""
    return {"schema_version": SCHEMA_VERSION, "command": command, **body}


def result_document(
    result: SearchResult,
    model: Mapping[str, Any],
    *,
    pareto: bool = False,
    min_nodes: Mapping[str, Any] | None = None,
    missing: Sequence[str] = (),
    serving: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The answer to one search; ``serving`` is what :func:`autoparallel_core.report.outlook.surroundings` adds to it."""
    from autoparallel_core.planners.reasons import notes

    more = {**NOT_SERVING, **(serving or {})}
    pools = more["disaggregated"] or {}
    fitting = [p for p in result.plans if p.verdict != "does not fit"]
    return envelope(
        "advise",
        {
            "status": "ok" if fitting or pools.get("deployments") else "nothing fits",
            **problem_document(result.problem, model),
            "assumptions": list(dict.fromkeys((*result.problem.assumptions, *result.assumptions))),
            "notes": [*more.pop("warnings"), *(notes(result.problem, fitting[0], fitting) if fitting else [])],
            "search": {
                "planner": result.planner,
                "chosen": result.chosen or None,
                "enumerated": result.enumerated,
                "evaluated": result.evaluated,
                "fitting": result.fitting,
                "elapsed_s": result.elapsed_s,
            },
            "refusals": dict(sorted(result.refused.items(), key=lambda kv: -kv[1])),
            "strategies": [plan_document(p, i + 1) for i, p in enumerate(fitting)],
            "pareto": [plan_document(p) for p in result.pareto] if pareto else [],
            "nearest_miss": plan_document(result.nearest_miss) if result.nearest_miss else None,
            "baseline": plan_document(result.baseline) if result.baseline else None,
            "operators": operators_document(result.operators) if result.operators else None,
            "missing": list(missing),
            "blame": dict(result.blame),
            "min_nodes": dict(min_nodes) if min_nodes is not None else None,
            **more,
        },
    )
