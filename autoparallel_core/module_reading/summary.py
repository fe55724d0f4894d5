"""The figures of a plan, gathered by repeated layer: what tables, pages and JSON show."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from autoparallel_core.module_reading.names import label, plain
from autoparallel_core.spec.module_plan import ModulePlan

MATRIX, ATTENTION, OTHER = "matrix products", "attention", "other operators"


def summary(plan: ModulePlan) -> dict[str, Any]:
    """Plain data; see docs/reference/json.md."""
    d = plan.document
    return {
        "module": d["module"]["class"],
        "source": d.get("source"),
        "made_by": dict(d["made_by"]),
        "mesh": plan.mesh,
        "cluster": {k: d["cluster"][k] for k in ("gpu", "n_gpus", "gpus_per_node")},
        "step_s": plan.step_s,
        "tokens_per_s_per_gpu": None if (n := tokens(d)) is None else n / plan.step_s / d["cluster"]["n_gpus"],
        "cost": dict(d["cost"]),
        "compute": compute(d),
        "memory": {k: d["memory"][k] for k in ("peak_bytes", "limit_bytes", "peak_at", "by_cause")},
        "search": dict(d["search"]),
        "meshes": list(d.get("meshes", ())),
        "pipeline": pipeline(d),
        "constraints": dict(d["constraints"]),
        "inputs": [{"name": name, **x} for name, x in d["inputs"].items()],
        "results": results(d),
        "placed_over": placed_over(d),
        "parameter_bytes": sum(p["bytes"] for p in d["parameters"].values()),
        "local_parameter_bytes": local_parameter_bytes(d),
        "parameters": parameters(d),
        "collectives": collectives(d),
        "recompute": recompute(d),
        "unruled": [{**u, "name": u["name"]} for u in d["unruled"]],
        "notes": list(d["notes"]),
    }


def pipeline(d: Mapping[str, Any]) -> dict[str, Any] | None:
    """How the stages are cut and run; None without a pipeline."""
    found = d.get("pipeline")
    if found is None:
        return None
    kept = ("ranks", "stages_per_rank", "schedule", "micro_batches", "slowest")
    of_stage = ("rank", "time_s", "update_s", "in_flight", "peak_bytes")
    stages = [{"layers": label(s["layers"]), **{k: s[k] for k in of_stage}} for s in found["stages"]]
    return {**{k: found[k] for k in kept}, "stages": stages}


def placed_over(d: Mapping[str, Any]) -> list[str]:
    """The mesh dimensions that the words of a placement stand for: all but a pipeline's."""
    names: list[str] = d["mesh"]["names"]
    return names[1:] if d.get("pipeline") else names


def local_parameter_bytes(d: Mapping[str, Any]) -> float:
    """Of one GPU; with a pipeline of the rank that holds most."""
    ranks = d["pipeline"]["ranks"] if d.get("pipeline") else 1
    held: dict[int, float] = {}
    for p in d["parameters"].values():
        rank = p.get("stage", 0) % ranks
        held[rank] = held.get(rank, 0.0) + p["local_bytes"]
    return max(held.values(), default=0.0)


def parameters(d: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parameters of one pattern, shape and placement as one entry; bytes are those of all of them."""
    pins = d["constraints"]["pins"]
    groups: dict[Hashable, list[str]] = {}
    for name, p in d["parameters"].items():
        key = (plain(name), tuple(p["shape"]), p["dtype"], p["placement"], p["trained"])
        groups.setdefault(key, []).append(name)
    out = []
    for names in groups.values():
        one = d["parameters"][names[0]]
        out.append(
            {
                "names": label(names),
                "count": len(names),
                "shape": one["shape"],
                "dtype": one["dtype"],
                "placement": one["placement"],
                "bytes": sum(d["parameters"][n]["bytes"] for n in names),
                "local_bytes": sum(d["parameters"][n]["local_bytes"] for n in names),
                "trained": one["trained"],
                "pinned": any(pinned(n, pins) for n in names),
            }
        )
    return out


def pinned(name: str, pins: Mapping[str, str]) -> bool:
    """Whether a pin's pattern matches the name, as planning matches it."""
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.weight") for p in pins)


def results(d: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the module returns, as placed."""
    found = sorted((h for h in d["hubs"] if h["kind"] == "result"), key=lambda h: h["output"])
    return [{"output": h["output"], "placement": h["placement"]} for h in found]


def collectives(d: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Collectives that repeat in every layer as one entry, dearest first; seconds and total bytes are those of all of them."""
    groups: dict[Hashable, list[Mapping[str, Any]]] = {}
    for c in d["collectives"]:
        key = (
            c["kind"],
            c["mesh_dim"],
            plain(c["for"]),
            bool(c["gradient_of"]),
            c["phase"],
            c["cause"],
            c["from"],
            c["to"],
            c["bytes"],
            c["dtype"],
        )
        groups.setdefault(key, []).append(c)
    out = [
        {
            "kind": g[0]["kind"],
            "mesh_dim": g[0]["mesh_dim"],
            "ranks": g[0]["ranks"],
            "for": moved_for(g),
            "phase": g[0]["phase"],
            "cause": g[0]["cause"],
            "from": g[0]["from"],
            "to": g[0]["to"],
            "dtype": g[0]["dtype"],
            "count": len(g),
            "bytes": g[0]["bytes"],
            "total_bytes": sum(c["bytes"] for c in g),
            "seconds": sum(c["seconds"] for c in g),
        }
        for g in groups.values()
    ]
    return sorted(out, key=lambda c: -c["seconds"])


def moved_for(group: Sequence[Mapping[str, Any]]) -> str:
    """What collectives serve: the parameters whose gradients they reduce, else the operators that read what they give."""
    gradients = [c["gradient_of"] for c in group if c["gradient_of"]]
    if gradients:
        return f"gradient of {label(dict.fromkeys(gradients))}"
    return label(dict.fromkeys(c["for"] for c in group))


def tokens(d: Mapping[str, Any]) -> int | None:
    """Tokens of one step, where the plan knows that its inputs are tokens."""
    source = d.get("source") or {}
    return source["seq_len"] * source["global_batch_size"] if source.get("kind") == "config" else None


def recompute(d: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What runs again in the backward, and how long that takes."""
    names: dict[str, list[str]] = {}
    for name in d["recompute"]:
        names.setdefault(plain(name), []).append(name)
    seconds: dict[str, float] = {}
    for step in d["program"]["steps"]:
        if step.get("again"):
            key = plain(step["name"])
            seconds[key] = seconds.get(key, 0.0) + step["s"]
    out = [{"names": label(n), "count": len(n), "seconds": seconds.get(key, 0.0)} for key, n in names.items()]
    return sorted(out, key=lambda r: -r["seconds"])


def compute(d: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of computation by kind of operator; what runs again is in there, too."""
    times = d["pipeline"]["micro_batches"] if d.get("pipeline") else 1
    found = {MATRIX: 0.0, ATTENTION: 0.0, OTHER: 0.0}
    for step in d["program"]["steps"]:
        if step["kind"] == "compute":
            found[_kind(step["op"])] += times * step["s"]
    return {k: v for k, v in found.items() if v > 0}


def _kind(op: str) -> str:
    if "attention" in op:
        return ATTENTION
    return MATRIX if op.split(".")[1:2] and op.split(".")[1] in {"mm", "bmm", "addmm", "baddbmm", "_grouped_mm"} else OTHER
