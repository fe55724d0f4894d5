"""Why a node is placed as it is: its cost, what is moved for it, and what every other placement would add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_core.module_reading.names import Regions, plain
from autoparallel_core.module_reading.summary import collectives, pinned
from autoparallel_core.naming import near_names
from autoparallel_core.spec.module_plan import ModulePlan

_LISTED = 8


def explain_node(plan: ModulePlan, name: str) -> dict[str, Any]:
    """One operator, parameter or input of a plan, as plain data.

    Args:
        plan: the plan.
        name: of the node, of any layer; parameters also without their ``.weight``.

    Raises:
        SpecError: nothing is called so; near names, or what a module of that name holds.
    """
    d = plan.document
    parts = [d, *({**d, **s["plan"]} for s in (d.get("pipeline") or {}).get("stages", ()))]
    for part in parts:
        node = _find(part, Regions(part["regions"]), name)
        if node is not None:
            found = _Explainer(part).of(node)
            return {**found, "pinned": found["pinned"] or pinned(name, d["constraints"]["pins"])}
    raise SpecError(_missing(parts, name))


def explain_every(plan: ModulePlan) -> dict[int, dict[str, Any]]:
    """The same for every operator, parameter and input, by slot."""
    explainer = _Explainer(plan.document)
    return {node["slot"]: explainer.of(node) for node in plan.document["operators"]}


class _Explainer:
    """What is looked up for every node of one plan."""

    def __init__(self, d: Mapping[str, Any]) -> None:
        self.regions = Regions(d["regions"])
        self.names = slot_names(d, self.regions)
        self.pins = d["constraints"]["pins"]
        self.reads: dict[int, list[Mapping[str, Any]]] = {}
        self.read_by: dict[int, list[Mapping[str, Any]]] = {}
        for e in d["edges"]:
            self.reads.setdefault(e["to"], []).append(e)
            self.read_by.setdefault(e["from"], []).append(e)
        self.moves: dict[str, list[Mapping[str, Any]]] = {}
        for c in d["collectives"]:
            self.moves.setdefault(self.regions.key(c["for"]), []).append(c)

    def of(self, node: Mapping[str, Any]) -> dict[str, Any]:
        slot, names = node["slot"], self.names
        moves = collectives({"collectives": self.moves.get(self.regions.key(node["name"]), [])})
        kept = ("kind", "mesh_dim", "count", "bytes", "from", "to", "seconds", "cause")
        return {
            "name": names[slot],
            "op": node["op"],
            "phase": node["phase"],
            "copies": node["copies"],
            "rules": node["rules"],
            "pinned": pinned(node["name"], self.pins),
            "shape": node["shape"],
            "out": node["out"],
            "in": node["in"],
            "seconds": dict(node["seconds"]),
            "recomputed": node["recomputed"],
            "options": node["options"],
            "reads": [_edge(e, names[e["from"]], "from") for e in self.reads.get(slot, ())],
            "read_by": [_edge(e, names[e["to"]], "to") for e in self.read_by.get(slot, ())],
            "collectives": [{k: c[k] for k in kept} for c in moves],
            "alternatives": [_alternative(x, slot, names) for x in node["alternatives"]],
        }


def _edge(edge: Mapping[str, Any], other: str, side: str) -> dict[str, Any]:
    return {side: other, "kind": edge["kind"], "given": edge["given"], "taken": edge["taken"], "seconds": edge["seconds"]}


def _alternative(option: Mapping[str, Any], slot: int, slots: Mapping[int, str]) -> dict[str, Any]:
    because = [
        {"what": "itself" if b["slot"] == slot else slots[b["slot"]], "kind": b["kind"], "adds_s": b["adds_s"]}
        for b in option.get("because", ())
    ]
    return {"out": option["out"], "in": option["in"], "adds_s": option["adds_s"], "because": because}


def slot_names(d: Mapping[str, Any], regions: Regions) -> dict[int, str]:
    """Slot → what it is, in words."""
    found = {o["slot"]: regions.label(o["name"]) for o in d["operators"]}
    for h in d["hubs"]:
        of = regions.label(h["of"])
        found[h["slot"]] = f"result {h['output']}" if h["kind"] == "result" else f"{of} as the {h['phase']} reads it"
    return found


def _find(d: Mapping[str, Any], regions: Regions, name: str) -> Mapping[str, Any] | None:
    by_key: dict[str, Mapping[str, Any]] = {}
    for o in d["operators"]:
        by_key.setdefault(regions.key(o["name"]), o)
    wanted = regions.key(name)
    for candidate in (wanted, f"{wanted}.weight", f"/{wanted}"):  # the root module's own operators have no name in front
        if candidate in by_key:
            return by_key[candidate]
    loose: list[Mapping[str, Any]] = [o for o in d["operators"] if plain(o["name"]) == plain(name) or plain(o["name"]) == name]
    return loose[0] if loose else None


def _missing(parts: Sequence[Mapping[str, Any]], name: str) -> str:
    """Why there is no such node: it is a module, or misspelt."""
    wanted = plain(name)
    names = list(dict.fromkeys(o["name"] for d in parts for o in d["operators"]))
    inside = [n for n in names if plain(n).startswith((f"{wanted}/", f"{wanted}."))]
    if inside:
        more = f" and {len(inside) - _LISTED} more" if len(inside) > _LISTED else ""
        return f"'{name}' is a module; explain one of its nodes: {', '.join(inside[:_LISTED])}{more}"
    near = near_names(name, names, limit=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "'autoparallel plan show --operators' lists them"
    return f"the plan has no node '{name}'; {hint}"
