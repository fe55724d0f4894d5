"""Regions in the planning problem and in the program: fixed placements, the price of their bodies, their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoparallel_pytorch.graph import BACKWARD, Dtype, Graph, Meta, Node, Ref, map_refs
from autoparallel_pytorch.local_regions import BACKWARD_OP, Body, Region
from autoparallel_pytorch.localize import localized
from autoparallel_pytorch.machine import Machine, Mesh
from autoparallel_pytorch.own_rules import Rule
from autoparallel_pytorch.placement import Placements, R, local_shape
from autoparallel_pytorch.prices import Prices
from autoparallel_pytorch.program import Value
from autoparallel_pytorch.views import is_view


def bodies(graph: Graph, node: Node, mesh: Mesh) -> tuple[Region, Body]:
    """The region of a node and its body on a mesh."""
    region: Region = graph.regions[node.args[0]]
    metas = [graph.meta(r) for r in list(node.refs())[: len(region.ins)]]
    return region, region.body(mesh, metas)


def region_rules(graph: Graph, node: Node, mesh: Mesh) -> tuple[tuple[Rule, ...], tuple[int, ...]]:
    """One rule per mesh dimension, and the only pick. Raises SpecError when the region is for another mesh."""
    region, _ = bodies(graph, node, mesh)
    outs, ins = region.placed(mesh, backward=node.op == BACKWARD_OP)
    per_dim = [(tuple(o[m] for o in outs), tuple(i[m] for i in ins)) for m in range(len(mesh.sizes))]
    rules = tuple(dict.fromkeys(per_dim))
    return rules, tuple(rules.index(r) for r in per_dim)


def _step_seconds(body: Body, prices: Prices, node: Node) -> tuple[float, bool]:
    """Of one operator of a body, and whether it is a collective."""
    move = body.move(node)
    if move is not None:
        (ref,) = node.refs()
        price = getattr(prices.machine, f"{move[0]}_s")
        return float(price(np.asarray(float(body.graph.meta(ref).bytes)), move[1])), True
    if is_view(node):
        return 0.0, False
    whole = (R,) * len(prices.machine.mesh.sizes)
    option = (tuple(whole for _ in node.outs), tuple(whole for _ in node.refs()))
    return float(prices.seconds(node, [option])[0]), False


def region_seconds(graph: Graph, node: Node, machine: Machine, copies: int) -> tuple[Any, Any]:
    """float64[1] of computation and of the region's own collectives."""
    _, body = bodies(graph, node, machine.mesh)
    prices, total = Prices(machine, body.graph), [0.0, 0.0]
    for inner in body.graph.nodes:
        if not inner.placeholder and (inner.phase == BACKWARD) is (node.op == BACKWARD_OP):
            seconds, moved = _step_seconds(body, prices, inner)
            total[moved] += seconds
    return np.array([copies * total[0]]), np.array([copies * total[1]])


def write(emitter: Any, node: Node, arguments: Sequence[int], outs: Sequence[Placements]) -> list[int]:
    """The steps of a region in the emitter's program; the values that it gives."""
    machine = emitter.machine
    region, body = bodies(emitter.graph, node, machine.mesh)
    backward = node.op == BACKWARD_OP
    graph, prices = body.graph, Prices(machine, body.graph)
    whole: Placements = (R,) * len(machine.mesh.sizes)
    key = tuple(node.refs())[: len(region.ins)]
    made: dict[Ref, int] = emitter.regions.setdefault((node.args[0], key), {})
    n = len(region.ins)
    made |= {Ref(graph.inputs[str(i)]): arguments[i] for i in range(n)}
    if backward:
        made |= {Ref(t): v for t, v in zip(graph.tangents, arguments[n:], strict=True) if t is not None}

    def value(r: Ref) -> Value:
        return Value(made[r])

    for inner in graph.nodes:
        if inner.placeholder or (inner.phase == BACKWARD) is not backward:
            continue
        seconds, _ = _step_seconds(body, prices, inner)
        refs = list(inner.refs())
        values = [-1 if meta is None else emitter.local(meta, whole) for meta in inner.outs]
        move = body.move(inner)
        if move is not None:
            kind, m, source, target = move
            args: tuple[Any, ...] = (Value(made[refs[0]]), m, source, target)
            emitter.inner_step(f"move.{kind}", args, {}, tuple(values), node.id, seconds, "exchange")
        else:
            given = map_refs(inner.args, value)
            kwargs = {k: map_refs(v, value) for k, v in inner.kwargs.items()}
            op, given = localized(graph, inner, (whole,) * len(inner.outs), (whole,) * len(refs), machine.mesh.sizes, given)
            emitter.inner_step(op, given, kwargs, tuple(values), node.id, seconds, "compute")
            if is_view(inner):
                emitter.program.values[values[0]].alias = made[refs[0]]
        made |= {Ref(inner.id, i): v for i, v in enumerate(values)}
    results = list(graph.gradients.values()) if backward else list(graph.outputs)
    found = []
    for ref, meta, p in zip(results, node.outs, outs, strict=True):
        assert meta is not None, "regions give tensors"
        if ref is None:  # nothing flows back
            local = Meta(local_shape(p, machine.mesh.sizes, meta.shape), meta.dtype)
            v = emitter.local(local, whole)
            emitter.inner_step("aten.zeros.default", (local.shape,), {"dtype": Dtype(meta.dtype)}, (v,), node.id, 0.0, "compute")
        else:
            v = made[ref]
        placed = emitter.local(Meta(local_shape(p, machine.mesh.sizes, meta.shape), meta.dtype), whole)
        emitter.program.values[placed].placements, emitter.program.values[placed].alias = p, v
        emitter.inner_step(
            "aten.view.default", (Value(v), emitter.program.values[placed].shape), {}, (placed,), node.id, 0.0, "compute"
        )
        found.append(placed)
    return found
