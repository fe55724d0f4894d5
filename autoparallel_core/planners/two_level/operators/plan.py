"""The cheapest sharding of every operator: one node per operator, resharding on the edges, a row per memory peak.

Solved by :func:`autoparallel_core.solve.assignment.solve_assignment`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen

from autoparallel_core.planners.two_level.operators.graph import Graph
from autoparallel_core.planners.two_level.operators.shardings import (
    Collectives,
    Mesh,
    Option,
    Sharding,
    divided,
    options_of,
    resharding,
)
from autoparallel_core.solve.assignment import Assignment, AssignmentResult, solve_assignment


@frozen
class OperatorPlan:
    """One option per operator."""

    options: tuple[Option, ...]
    cost: float
    collectives: Counter[str]
    """How many of each, resharding included."""
    solved: AssignmentResult
    graph: Graph

    def sharding(self, name: str) -> Sharding:
        """Of a node's result."""
        return self.options[next(i for i, n in enumerate(self.graph.nodes) if n.name == name)].result


def plan_operators(
    graph: Graph,
    mesh: Mesh,
    comm: Collectives,
    *,
    allowed: frozenset[str] | None = None,
    memory_bytes: float | None = None,
    state_factor: float = 1.0,
    time_limit_s: float = 60.0,
) -> OperatorPlan | None:
    """The cheapest plan; None when nothing fits.

    Args:
        graph: the computation.
        mesh: the devices.
        comm: costs of collectives.
        allowed: axes that may be sharded; None: all.
        memory_bytes: of one device: parameters with their state, and results that a later operator still needs.
        state_factor: bytes of a parameter with gradient and optimizer state over its own.
        time_limit_s: of the solver.
    """
    options = [options_of(graph, i, mesh, comm, allowed) for i in range(len(graph.nodes))]
    if any(not o for o in options):
        return None
    edges: dict[tuple[int, int], np.ndarray] = {}
    for i, node in enumerate(graph.nodes):
        for at, j in enumerate(node.inputs):
            table = reshardings(graph.bytes(j), mesh, comm, options[j], options[i], at)
            edges[j, i] = edges[j, i] + table if (j, i) in edges else table
    follow = {}
    for i, node in enumerate(graph.nodes):
        if node.sharded_as is not None:
            index = {o.result: k for k, o in enumerate(options[i])}
            follow[i] = (node.sharded_as, [index.get(o.result, -1) for o in options[node.sharded_as]])
    rows = [] if memory_bytes is None else _rows(graph, mesh, options, memory_bytes, state_factor)
    problem = Assignment.of([[o.cost for o in opts] for opts in options], edges, rows, follow)
    solved = solve_assignment(problem, time_limit_s=time_limit_s)
    if solved.choice is None:
        return None
    chosen = tuple(opts[k] for opts, k in zip(options, solved.choice, strict=True))
    return OperatorPlan(chosen, solved.cost, _count(graph, mesh, comm, chosen), solved, graph)


def reshardings(
    n_bytes: float, mesh: Mesh, comm: Collectives, have: Sequence[Option], need: Sequence[Option], at: int | None = None
) -> np.ndarray:  # fmt: skip
    """Cost of bringing a tensor from what each option has to what each needs of its operand ``at`` (None: what it has itself)."""
    targets = [o.result if at is None else o.operands[at] for o in need]
    results, wanted = (list(dict.fromkeys(x)) for x in ((o.result for o in have), targets))
    cost = np.array([[resharding(n_bytes, mesh, comm, a, b)[0] for b in wanted] for a in results])
    rows = [results.index(o.result) for o in have]
    columns = [wanted.index(t) for t in targets]
    return np.asarray(cost[np.ix_(rows, columns)])


def _rows(
    graph: Graph, mesh: Mesh, options: list[list[Option]], memory_bytes: float, state_factor: float
) -> list[tuple[dict[int, list[float]], float]]:
    """One row per set of tensors that are alive together, unless another set holds all of them."""
    held = {i for i, n in enumerate(graph.nodes) if n.kind == "parameter"}

    def local(i: int) -> list[float]:
        factor = state_factor if i in held else 1.0
        return [factor * divided(graph.bytes(i), mesh, o.result) for o in options[i]]

    return [({i: local(i) for i in sorted(alive)}, memory_bytes) for alive in _peaks(graph, held)]


def _peaks(graph: Graph, held: set[int]) -> Iterator[set[int]]:
    last = {i: max([i, *graph.users(i)]) for i in range(len(graph.nodes))}
    alive = [
        held | {i for i in range(t + 1) if last[i] >= t and graph.nodes[i].kind != "update"} for t in range(len(graph.nodes))
    ]
    for t, now in enumerate(alive):
        if not any(now < other or (now == other and s < t) for s, other in enumerate(alive)):
            yield now


def _count(graph: Graph, mesh: Mesh, comm: Collectives, chosen: tuple[Option, ...]) -> Counter[str]:
    """Collectives of a plan. A tensor that several operators need in the same sharding is brought there once for each."""
    used: Counter[str] = Counter()
    for i, node in enumerate(graph.nodes):
        used.update(chosen[i].collectives)
        for at, j in enumerate(node.inputs):
            used.update(resharding(graph.bytes(j), mesh, comm, chosen[j].result, chosen[i].operands[at])[1])
    return used
