"""Which forward results to keep for the backward and which to compute again, decided together with the placements.

A forward operator's result is *kept*, computed *again* in the backward, or neither (when the backward does not read it).
Computing one again needs its inputs there: kept, or computed again in turn (so whole chains between kept tensors are
recomputed, as activation checkpointing does, but where it pays). An option of the expanded problem is a placement and a
state; an edge into an operator that runs again costs twice and forbids inputs that are not there.

Memory is priced: with μ seconds per byte kept, the problem stays without memory rows, and every μ gives a bound on the
step of any plan that keeps at most the limit (Lagrangian relaxation).
Axis legend: K placements of a slot, Z states; an option's number is ``state · K + placement``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from autoparallel_pytorch.formulate import WEIGHTS, Formulation, Slot
from autoparallel_pytorch.graph import BACKWARD, FORWARD, Graph, Ref
from autoparallel_pytorch.local_regions import REGIONS
from autoparallel_pytorch.placement import shards
from autoparallel_pytorch.regions import Classes
from autoparallel_pytorch.views import chain_of, is_view

Array = NDArray[np.float64]
GONE, AGAIN, KEPT = 0, 1, 2
_MATRIX = frozenset({"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "autoparallel.attention"})


@frozen(eq=False)
class States:
    """The states that each slot may be in, and the bytes that each placement of it keeps for the backward."""

    of: tuple[tuple[int, ...], ...]
    kept_bytes: tuple[Array, ...]
    """Of all copies, float64[K]; what memory holds in any case for parameters and inputs."""
    fixed: tuple[bool, ...]
    """Whether the bytes are there whatever the state."""


def states_of(graph: Graph, classes: Classes, form: Formulation, sizes: Sequence[int], optimizer_bytes: float) -> States:
    """States and bytes per slot."""
    read = _read_in_backward(graph)
    crossing = _crossing(graph, classes)
    known: list[tuple[int, ...]] = []
    bytes_: list[Array] = []
    fixed: list[bool] = []
    for slot in form.slots:
        node = graph.nodes[slot.node]
        k = len(slot.picks)
        if slot.key[0] == "hub":
            known.append((GONE, AGAIN) if slot.key[3] == FORWARD and node.phase == FORWARD else (KEPT,))
            bytes_.append(np.zeros(k))
            fixed.append(False)
            continue
        if slot.key[0] == "result" or node.phase == BACKWARD:
            known.append((KEPT,))
            bytes_.append(np.zeros(k))
            fixed.append(False)
            continue
        held = np.zeros(k)
        members = classes.members[slot.key[1]]
        wanted = False
        for out, meta in enumerate(node.outs):
            if meta is None:
                continue
            count = sum(Ref(m, out) in read for m in members)
            wanted |= count > 0
            cut = np.array([shards(o[out], sizes) for o in slot.outs])
            if node.op == "parameter":
                trained = sum(graph.gradients.get(graph.nodes[m].name) is not None for m in members)
                held += (len(members) * meta.bytes + trained * meta.elements * optimizer_bytes) / cut
            elif node.placeholder:
                held += len(members) * meta.bytes / cut
            else:
                held += len(members) * meta.bytes / cut
        bytes_.append(held)
        fixed.append(node.placeholder)
        if node.placeholder or node.op in REGIONS or any(m in crossing for m in members):
            known.append((KEPT,))
        elif wanted:
            known.append((AGAIN, KEPT))
        else:
            known.append((GONE, AGAIN, KEPT) if node.op in _MATRIX else (GONE, AGAIN))
    return States(tuple(known), tuple(bytes_), tuple(fixed))


def _read_in_backward(graph: Graph) -> set[Ref]:
    """Forward tensors that backward operators read, through views or directly."""
    found = set()
    for node in graph.nodes:
        if node.phase == BACKWARD and not is_view(node):
            for ref in node.refs():
                base, _ = chain_of(graph, ref)
                if graph.nodes[base.node].phase == FORWARD and not graph.nodes[base.node].placeholder:
                    found.add(base)
    return found


def _crossing(graph: Graph, classes: Classes) -> set[int]:
    """Forward operators of a repeated layer that something outside of that layer reads: they bound what is recomputed."""
    layers = sorted({name for names in classes.regions.values() for name in names}, key=len)
    layer = [_layer(node.name, layers) if node.phase == FORWARD else "" for node in graph.nodes]
    found = set()
    for node in graph.nodes:
        if node.phase == FORWARD and not is_view(node):
            for ref in node.refs():
                base, _ = chain_of(graph, ref)
                if layer[base.node] and layer[base.node] != layer[node.id]:
                    found.add(base.node)
    return found


def _layer(name: str, layers: Sequence[str]) -> str:
    """The outermost repeated module that an operator belongs to."""
    return next((x for x in layers if name.startswith((f"{x}.", f"{x}/"))), "")


def expand(form: Formulation, graph: Graph, states: States) -> Formulation:
    """The problem over placements and states, without a price on memory."""
    slots = []
    for slot, z in zip(form.slots, states.of, strict=True):
        k = len(slot.picks)
        factor = np.repeat([2.0 if s == AGAIN else 1.0 for s in z], k)
        cost = {kind: np.tile(c, len(z)) * factor for kind, c in slot.cost.items()}
        slots.append(evolve(slot, picks=slot.picks * len(z), outs=slot.outs * len(z), ins=slot.ins * len(z), cost=cost))
    edges = {}
    for (u, v, kind), table in form.edges.items():
        reads_forward = _forward(form.slots[v], graph)
        factor = np.ones((len(states.of[u]), len(states.of[v])))
        for i, zu in enumerate(states.of[u]):
            for j, zv in enumerate(states.of[v]):
                if reads_forward and zv == AGAIN:
                    # A gather of parameters for an operator that runs again serves its gradient too.
                    factor[i, j] = np.inf if zu == GONE else 1.0 if kind == WEIGHTS else 2.0
        edges[u, v, kind] = table.grouped(factor)
    return Formulation(slots, form.index, edges, form.inputs, form.weight)


def _forward(slot: Slot, graph: Graph) -> bool:
    if slot.key[0] == "hub":
        return slot.key[3] == FORWARD
    return slot.key[0] == "op" and graph.nodes[slot.node].phase == FORWARD and not graph.nodes[slot.node].placeholder


def memory_of(form: Formulation, states: States, choice: Sequence[int]) -> float:
    """Bytes that parameters, their state, inputs and kept results take, for a choice of the expanded problem."""
    total = 0.0
    for slot, z, held, fixed, k in zip(form.slots, states.of, states.kept_bytes, states.fixed, choice, strict=True):
        n = len(slot.picks) // len(z)
        if fixed or z[k // n] == KEPT:
            total += float(held[k % n])
    return total


def memory_rows(states: States) -> dict[int, Array]:
    """Bytes per option of the expanded problem, by slot."""
    found = {}
    for i, (z, held, fixed) in enumerate(zip(states.of, states.kept_bytes, states.fixed, strict=True)):
        row = np.concatenate([held if fixed or s == KEPT else np.zeros_like(held) for s in z])
        if row.any():
            found[i] = row
    return found


def split(states: States, form: Formulation, choice: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Placement and state per slot of a choice of the expanded problem."""
    placements, found = [], []
    for slot, z, k in zip(form.slots, states.of, choice, strict=True):
        n = len(slot.picks) // len(z)
        placements.append(k % n)
        found.append(z[k // n])
    return tuple(placements), tuple(found)
