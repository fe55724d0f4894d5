"""What differs between two plans, gathered by repeated layer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from autoparallel_core.module_reading.names import Regions, label, labels, plain
from autoparallel_core.module_reading.summary import moved_for, pipeline
from autoparallel_core.spec.module_plan import ModulePlan

_SAME = 1e-9
"""Relative: figures closer than that are the same."""


def diff(a: ModulePlan, b: ModulePlan) -> dict[str, Any]:
    """Plain data; lists are empty where the plans agree."""
    x, y = a.document, b.document
    out: dict[str, Any] = {
        "setting": _setting(x, y),
        "figures": _figures(x, y),
        "parameters": _parameters(x, y),
        "operators": _operators(x, y),
        "collectives": _collectives(x, y),
        "recompute": _recompute(x, y),
    }
    return {"same": not any(out.values()), **out}


def _setting(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was asked, where it differs."""

    def of(d: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {f"input {n}": f"{v['dtype']} {'×'.join(map(str, v['shape']))}" for n, v in d["inputs"].items()}
        return {
            "module": d["module"]["class"],
            "fingerprint": d["module"]["fingerprint"]["digest"],
            "mesh": ",".join(f"{n}={s}" for n, s in zip(d["mesh"]["names"], d["mesh"]["sizes"], strict=True)),
            "gpu": d["cluster"]["gpu"],
            "gpus_per_node": d["cluster"]["gpus_per_node"],
            "torch": d["made_by"]["torch"],
            "memory_limit_bytes": d["constraints"]["memory_limit_bytes"],
            "optimizer_bytes_per_parameter": d["constraints"]["optimizer_bytes_per_parameter"],
            **_pipeline(d),
            **inputs,
            **{f"pin {n}": p for n, p in d["constraints"]["pins"].items()},
        }

    p, q = of(x), of(y)
    return [{"name": k, "a": p.get(k), "b": q.get(k)} for k in dict.fromkeys([*p, *q]) if p.get(k) != q.get(k)]


def _pipeline(d: Mapping[str, Any]) -> dict[str, Any]:
    found = pipeline(d)
    if found is None:
        return {}
    layers = {f"stage {i}": s["layers"] for i, s in enumerate(found["stages"])}
    return {"schedule": found["schedule"], "micro_batches": found["micro_batches"], **layers}


def _figures(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[dict[str, Any]]:
    def of(d: Mapping[str, Any]) -> dict[str, float]:
        return {
            **{f"cost.{k}": v for k, v in d["cost"].items()},
            "memory.peak_bytes": d["memory"]["peak_bytes"],
            **{f"memory.{k}_bytes": v for k, v in d["memory"]["by_cause"].items()},
        }

    p, q = of(x), of(y)
    names = dict.fromkeys([*p, *q])
    return [{"name": k, "a": p.get(k, 0.0), "b": q.get(k, 0.0)} for k in names if not _close(p.get(k, 0.0), q.get(k, 0.0))]


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME * max(abs(a), abs(b))


def _parameters(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Placements that differ; None where only one of the plans has the parameter."""
    p, q = x["parameters"], y["parameters"]
    groups: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in dict.fromkeys([*p, *q]):
        a = p[name]["placement"] if name in p else None
        b = q[name]["placement"] if name in q else None
        if a != b:
            groups.setdefault((plain(name), a, b), []).append(name)
    return [
        {
            "names": label(names),
            "count": len(names),
            "a": a,
            "b": b,
            "a_local_bytes": sum(p[n]["local_bytes"] for n in names if n in p),
            "b_local_bytes": sum(q[n]["local_bytes"] for n in names if n in q),
        }
        for (_, a, b), names in groups.items()
    ]


def _operators(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Operators whose results or inputs are placed otherwise, parameters apart."""

    def of(d: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, Any]]]:
        regions = Regions(d["regions"])
        return {regions.key(o["name"]): (regions.label(o["name"]), o) for o in d["operators"] if o["op"] != "parameter"}

    p, q = of(x), of(y)
    out = []
    for key in dict.fromkeys([*p, *q]):
        name = (p.get(key) or q[key])[0]
        old, new = (t[key][1] if key in t else None for t in (p, q))
        if old is None or new is None or (old["out"], old["in"]) != (new["out"], new["in"]):
            out.append({"name": name, "a": _placed(old), "b": _placed(new)})
    return out


def _placed(operator: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if operator is None:
        return None
    return {"in": operator["in"], "out": operator["out"], "seconds": sum(operator["seconds"].values())}


def _collectives(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By kind, mesh dimension, part of the module and phase: how many, how many bytes, how long."""

    def of(d: Mapping[str, Any]) -> dict[Hashable, list[Mapping[str, Any]]]:
        groups: dict[Hashable, list[Mapping[str, Any]]] = {}
        for c in d["collectives"]:
            key = (c["kind"], c["mesh_dim"], plain(c["for"]), bool(c["gradient_of"]), c["phase"], c["cause"])
            groups.setdefault(key, []).append(c)
        return groups

    p, q = of(x), of(y)
    out = []
    for key in dict.fromkeys([*p, *q]):
        old, new = _amount(p.get(key, [])), _amount(q.get(key, []))
        if old["count"] == new["count"] and old["bytes"] == new["bytes"] and _close(old["seconds"], new["seconds"]):
            continue
        one = (p.get(key) or q[key])[0]
        names = moved_for([*p.get(key, []), *q.get(key, [])])
        same = {k: one[k] for k in ("kind", "mesh_dim", "phase", "cause")}
        out.append({**same, "for": names, "a": old, "b": new})
    return sorted(out, key=lambda c: -abs(c["a"]["seconds"] - c["b"]["seconds"]))


def _amount(group: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {"count": len(group), "bytes": sum(c["bytes"] for c in group), "seconds": sum(c["seconds"] for c in group)}


def _recompute(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[dict[str, Any]]:
    p, q = set(x["recompute"]), set(y["recompute"])
    only = [("a", sorted(p - q)), ("b", sorted(q - p))]
    return [{"only_in": which, "names": text} for which, names in only for text in labels(names)]
