"""The operators of a plan as graphs, one per layer class and phase: what the page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from autoparallel_core.module_reading.explain import slot_names
from autoparallel_core.module_reading.names import Regions

REST = ""
"""The class of what is in no repeated layer."""
NOTHING_S = 1e-9
"""Ties are broken by less than that; it is no redistribution."""
_PLACEHOLDERS = frozenset({"parameter", "input", "buffer", "constant"})


@frozen
class Node:
    """A box. ``slot`` is that of the plan's operator, None for what stands outside of this graph."""

    title: str
    sub: str
    placement: str
    kind: str
    """operator, parameter, input, hub or outside."""
    slot: int | None = None
    seconds: float = 0.0
    again: bool = False


@frozen
class Edge:
    """A line, with what it changes on the way."""

    given: str
    taken: str
    seconds: float

    @property
    def moves(self) -> bool:
        return self.seconds > NOTHING_S


@define
class Drawing:
    """One graph: nodes in an order in which every edge leads forward."""

    nodes: dict[str, Node] = field(factory=dict)
    edges: dict[tuple[str, str], Edge] = field(factory=dict)


def drawings(document: Mapping[str, Any]) -> dict[str, dict[str, Drawing]]:
    """Layer class → phase → graph. The class :data:`REST` comes first."""
    return _Graphs(document).build()


class _Graphs:
    def __init__(self, d: Mapping[str, Any]) -> None:
        self.d = d
        self.regions = Regions(d["regions"])
        self.names = slot_names(d, self.regions)
        self.operators: dict[int, Mapping[str, Any]] = {o["slot"]: o for o in d["operators"]}
        self.order = {slot: i for i, slot in enumerate(self.operators)}
        self.class_of = {slot: self._class(o["name"]) for slot, o in self.operators.items()}
        self.hubs: dict[int, Mapping[str, Any]] = {}
        self.edges = self._hub_edges()

    def _class(self, name: str) -> str:
        key = self.regions.key(name)
        outer = [p for p in self.regions.of if key.startswith((f"{p}.", f"{p}/"))]
        return min(outer, key=len, default=REST)

    def _hub_edges(self) -> list[tuple[int, int, Edge]]:
        """Edges between operators and between them and hubs; hubs that change nothing are left out of the way."""
        into: dict[int, list[Mapping[str, Any]]] = {}
        for e in self.d["edges"]:
            if e["to"] not in self.operators:
                into.setdefault(e["to"], []).append(e)
        self.hubs = {
            h["slot"]: h
            for h in self.d["hubs"]
            if h["kind"] == "hub" and sum(e["seconds"] for e in into.get(h["slot"], ())) > NOTHING_S
        }
        found = []
        for e in self.d["edges"]:
            if self._drawn(e["from"]) and self._drawn(e["to"]):
                found.append((e["from"], e["to"], Edge(e["given"], e["taken"], e["seconds"])))
            elif e["to"] in self.operators:
                found += [
                    (first["from"], e["to"], Edge(first["given"], e["taken"], first["seconds"] + e["seconds"]))
                    for first in into.get(e["from"], ())
                ]
        return [(u, v, edge) for u, v, edge in found if self._drawn(u)]

    def _drawn(self, slot: int) -> bool:
        return slot in self.operators or slot in self.hubs

    def build(self) -> dict[str, dict[str, Drawing]]:
        out: dict[str, dict[str, Drawing]] = {REST: {}}
        for name in dict.fromkeys(self.class_of.values()):
            for phase in ("forward", "backward"):
                drawing = self._drawing(name, phase)
                if any(n.kind == "operator" for n in drawing.nodes.values()):
                    out.setdefault(name, {})[phase] = drawing
        return out if out[REST] else {k: v for k, v in out.items() if v}

    def _drawing(self, name: str, phase: str) -> Drawing:
        inside = {
            slot
            for slot, o in self.operators.items()
            if self.class_of[slot] == name and o["phase"] == phase and o["op"] not in _PLACEHOLDERS
        }
        readers = [(u, v) for u, v, _ in self.edges if u in self.hubs and v in inside]
        hubs = {u for u, _ in readers}
        before: dict[str, Node] = {}
        after: dict[str, Node] = {}
        edges: dict[tuple[str, str], Edge] = {}
        for u, v, edge in self.edges:
            if (u in inside or u in hubs) and v in inside and self._place(u) < self.order[v]:
                pair = (str(u), str(v))
            elif v in inside or v in hubs:
                if v in hubs and u in inside and self._place(u) < self._place(v):
                    pair = (str(u), str(v))
                elif u in self.operators:
                    pair = (self._outside(before, u, v, name, edge.given, giving=True), str(v))
                else:
                    continue
            elif u in inside and v in self.operators and (phase == "backward" or self.operators[v]["phase"] == phase):
                pair = (str(u), self._outside(after, v, u, name, edge.taken, giving=False))
            else:
                continue
            old = edges.get(pair)
            edges[pair] = edge if old is None else Edge(old.given, old.taken, old.seconds + edge.seconds)
        boxes = sorted([*inside, *hubs], key=lambda slot: (self._place(slot, readers), slot in inside))
        nodes = {str(slot): self._operator(slot) if slot in inside else self._hub(slot) for slot in boxes}
        return Drawing({**before, **nodes, **after}, edges)

    def _place(self, slot: int, readers: Sequence[tuple[int, int]] = ()) -> float:
        """Where a box stands in the order of operators; a hub right before the first that reads it."""
        if slot in self.order:
            return self.order[slot]
        first = min((self.order[v] for u, v in readers or [(u, v) for u, v, _ in self.edges] if u == slot and v in self.order))
        return first - 0.5

    def _hub(self, slot: int) -> Node:
        h = self.hubs[slot]
        return Node("moved once for all readers", "", h["placement"], "hub", None)

    def _operator(self, slot: int) -> Node:
        o = self.operators[slot]
        title = self._short(self.names[slot], self.class_of[slot])
        placement = o["out"][0] if o["out"] else ""
        return Node(title, o["op"], placement, "operator", slot, sum(o["seconds"].values()), o["recomputed"])

    def _outside(self, nodes: dict[str, Node], slot: int, inner: int, name: str, placement: str, *, giving: bool) -> str:
        """The box of what stands outside: a parameter, an input, another class, the layer before, the other phase."""
        o = self.operators[slot]
        kind = o["op"] if o["op"] in {"parameter", "input"} else "outside"
        title = self._short(self.names[slot], name)
        if o["op"] == "parameter":
            sub = "parameter" if giving else "its gradient"
        elif o["op"] in _PLACEHOLDERS:
            sub = o["op"]
        elif self.class_of[slot] == name and o["phase"] == self._phase(inner):
            sub = "of the neighbouring layer"
        else:
            sub = f"of the {o['phase']}"
        # A parameter is drawn once per reader, so that no line crosses the picture for it.
        key = f"{'in' if giving else 'out'} {slot}" + (f" {inner}" if kind == "parameter" else "")
        nodes.setdefault(key, Node(title, sub, placement, kind, slot))
        return key

    def _phase(self, slot: int) -> str:
        found: str = self.operators[slot]["phase"] if slot in self.operators else self.hubs[slot]["phase"]
        return found

    def _short(self, title: str, name: str) -> str:
        """Without the layer's own name in front."""
        if name == REST:
            return title.lstrip("/")
        head = self.regions.label(self.regions.of[name][0])
        return title[len(head) :].lstrip("./") if title.startswith(head) else title


def class_label(document: Mapping[str, Any], name: str) -> str:
    """``layers.0…31, 32 times``."""
    if name == REST:
        return "Outside of repeated layers"
    regions = Regions(document["regions"])
    return f"{regions.label(regions.of[name][0])} ({len(regions.of[name])} layers planned as one)"
