"""How one operator may be sharded over a mesh, what it then communicates, and what a change of sharding costs.

A sharding gives every mesh dimension an axis or none. An einsum gives every mesh dimension one of its axes: an axis of
the result shards the result (a batch axis: data parallelism; an output axis: column-parallel weights; an axis of
experts: expert parallelism), an axis summed over leaves partial sums (row-parallel weights; weight gradients under data
parallelism), which are all-reduced, or reduce-scattered onto an axis of the result (ZeRO, sequence parallelism).

Axis legend: D mesh dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from attrs import field, frozen

from autoparallel_core.planners.two_level.operators.graph import Graph

Sharding = tuple[str | None, ...]
"""Axis by mesh dimension."""


@frozen
class Mesh:
    """Devices along each dimension."""

    shape: tuple[int, ...]
    even: bool = False
    """Whether axes may only be cut into equal parts."""


@frozen
class Collectives:
    """Costs of collectives over one mesh dimension; ``n_bytes`` is the whole buffer of the group.

    Any unit will do; what is added to it must have the same.
    """

    all_reduce: Callable[[int, float], float]
    """(dimension, bytes)."""
    all_gather: Callable[[int, float], float]
    reduce_scatter: Callable[[int, float], float]
    all_to_all: Callable[[int, float], float]
    touch: Callable[[float], float] = lambda _: 0.0
    """Of an element-wise pass that writes so many bytes on every device."""
    replicated: float = 0.0
    """Of a parameter or input that every device holds whole."""
    scatter: bool = True
    """Whether partial sums may be reduce-scattered."""
    gather: bool = True
    """Whether a sharded tensor may be gathered."""


@frozen
class Option:
    """One sharding of an operator: its result's, what it needs of its operands, and its collectives."""

    result: Sharding
    operands: tuple[Sharding, ...] = ()
    cost: float = 0.0
    collectives: Mapping[str, int] = field(factory=dict)
    work: float = 1.0
    """Share of the operator's work that one device does."""


def shards(sizes: Mapping[str, float], axes: Sequence[str], mesh: Mesh, sharding: Sharding) -> bool:
    """Whether every axis has at least one element (of an even mesh: as many) per device along the dimensions given to it."""
    for a in axes:
        n = 1
        for d, b in enumerate(sharding):
            n *= mesh.shape[d] if a == b else 1
        if n > 1 and (n > sizes[a] or (mesh.even and sizes[a] % n)):
            return False
    return True


def divided(n_bytes: float, mesh: Mesh, sharding: Sharding, *, without: int | None = None) -> float:
    """Bytes per device, or per group along one dimension."""
    for d, a in enumerate(sharding):
        if a is not None and d != without:
            n_bytes /= mesh.shape[d]
    return n_bytes


def options_of(
    graph: Graph, i: int, mesh: Mesh, comm: Collectives, allowed: frozenset[str] | None = None, work: frozenset[str] | None = None
) -> list[Option]:  # fmt: skip
    """Every option of node ``i``; ``allowed`` limits the axes that may be sharded, ``work`` those that einsums are split by."""
    node = graph.nodes[i]
    if node.kind == "einsum":
        return _einsum_options(graph, i, mesh, comm, allowed, work)
    axes = [a for a in node.axes if (allowed is None or a in allowed) and a not in node.whole]
    out = []
    for sharding in product([None, *axes], repeat=len(mesh.shape)):
        if not shards(graph.sizes, node.axes, mesh, sharding):
            continue
        held = node.kind in {"input", "parameter"} and all(a is None for a in sharding)
        needs = tuple(_restricted(sharding, graph.nodes[j].axes) for j in node.inputs)
        cost = comm.touch(divided(graph.bytes(i), mesh, sharding)) if node.kind == "elementwise" and not node.view else 0.0
        out.append(Option(sharding, needs, cost + (comm.replicated if held else 0.0)))
    return out


def _restricted(sharding: Sharding, axes: Sequence[str]) -> Sharding:
    return tuple(a if a in axes else None for a in sharding)


def _einsum_options(
    graph: Graph, i: int, mesh: Mesh, comm: Collectives, allowed: frozenset[str] | None, work: frozenset[str] | None
) -> list[Option]:  # fmt: skip
    """Every device takes a different part of the work; an axis that is too short leaves none."""
    node, every = graph.nodes[i], graph.einsum_axes(i)
    axes = [a for a in every if (allowed is None or a in allowed) and a not in node.whole]
    out = []
    for given in product([a for a in axes if work is None or a in work], repeat=len(mesh.shape)):
        if not shards(graph.sizes, every, mesh, given):
            continue
        operands = tuple(_restricted(given, graph.nodes[j].axes) for j in node.inputs)
        kept = _restricted(given, node.axes)
        partial = [d for d, a in enumerate(given) if a not in node.axes]
        onto = [a for a in node.axes if a in axes] if comm.scatter else []
        targets = [[None, *onto] for _ in partial]
        for scattered in product(*targets):
            option = _reduced(graph, i, mesh, comm, kept, operands, dict(zip(partial, scattered, strict=True)))
            if option is not None:
                out.append(option)
    return out


def _reduced(
    graph: Graph, i: int, mesh: Mesh, comm: Collectives, kept: Sharding, operands: tuple[Sharding, ...],
    scattered: Mapping[int, str | None],
) -> Option | None:  # fmt: skip
    """The option in which each dimension of partial sums is all-reduced (None) or scattered onto an axis."""
    held: list[str | None] = list(kept)
    cost, used = 0.0, {"all-reduce": 0, "reduce-scatter": 0}
    for d, axis in scattered.items():
        n_bytes = divided(graph.bytes(i), mesh, tuple(held))
        if axis is None:
            cost += comm.all_reduce(d, n_bytes)
            used["all-reduce"] += 1
        else:
            held[d] = axis
            cost += comm.reduce_scatter(d, n_bytes)
            used["reduce-scatter"] += 1
    result = tuple(held)
    if not shards(graph.sizes, graph.nodes[i].axes, mesh, result):
        return None
    return Option(result, operands, cost, {k: n for k, n in used.items() if n})


def resharding(n_bytes: float, mesh: Mesh, comm: Collectives, have: Sharding, need: Sharding) -> tuple[float, dict[str, int]]:
    """Cost and collectives of bringing a tensor of ``n_bytes`` from one sharding to another, dimension by dimension.

    Cutting what is whole is free; a whole axis is gathered; one axis for another is an all-to-all.
    """
    cost, used = 0.0, {"all-gather": 0, "all-to-all": 0}
    held = list(have)
    # Cut first: what is gathered afterwards is smaller.
    for d, (a, b) in enumerate(zip(have, need, strict=True)):
        if a is None and b is not None:
            held[d] = b
    for d, (a, b) in enumerate(zip(have, need, strict=True)):
        if a is None or a == b:
            continue
        group = divided(n_bytes, mesh, tuple(held), without=d)
        if b is None:
            cost += comm.all_gather(d, group) if comm.gather else np.inf
            used["all-gather"] += 1
        else:
            cost += comm.all_to_all(d, group)
            used["all-to-all"] += 1
        held[d] = b
    return cost, {k: n for k, n in used.items() if n}
