"""A sharding for every operator of a model on one mesh: all layers of a class alike, the residual stream passed on.

The layers' graphs (:mod:`lowering`) are joined: what leaves one layer enters the next in the sharding that one has, or is
resharded, and so do the gradients on their way back. A parameter has a sharding of its own, its gradient and its
optimizer state another, so that every ZeRO stage is a choice. Matrix products, attention and scans are split evenly over
all devices by any plan and so cost the same in all; what differs is collectives and element-wise passes, which are what
is minimised, in seconds of a step. Collectives are counted whole: nothing is hidden behind computation.

One memory row: parameters, gradients and optimizer state of all layers, and what the forward pass keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.training_memory import gradient_buffer_bytes
from autoparallel_core.planners.two_level.operators.lowering import ELEMENT_BYTES, LayerGraph, head_graph, layer_graph
from autoparallel_core.planners.two_level.operators.plan import reshardings
from autoparallel_core.planners.two_level.operators.shardings import (
    Collectives,
    Mesh,
    Option,
    Sharding,
    divided,
    options_of,
    resharding,
)
from autoparallel_core.solve.assignment import Assignment, solve_assignment
from autoparallel_core.solve.reduce import reduce_assignment
from autoparallel_core.spec.problem import Problem

Array = NDArray[np.float64]
Tables = dict[tuple[int, int], Array]
HEAD = "head"
PASSES = 2
"""An element-wise pass reads about as much as it writes."""


@frozen
class Part:
    """A class of layers, or the head, with its graph."""

    name: str
    count: int
    layer: LayerGraph


@frozen
class ModelOperatorPlan:
    """One option per operator of each part."""

    mesh: Mesh
    micro_batches: int
    parts: tuple[Part, ...]
    options: tuple[tuple[Option, ...], ...]
    step_s: float
    """Seconds of a step for collectives and element-wise passes."""
    seconds: Mapping[str, float]
    """The same by what causes them."""
    collectives: Mapping[str, int]
    """Of one layer of each class and the head, per micro-batch or per step, by kind."""
    held_bytes: float
    """On one device."""
    gap: float
    """How far the solver's bound is below, relative."""

    def sharding(self, part: str, node: str) -> Sharding:
        """Of the result of a node."""
        p = next(i for i, x in enumerate(self.parts) if x.name == part)
        at = next(i for i, n in enumerate(self.parts[p].layer.graph.nodes) if n.name == node)
        return self.options[p][at].result


def plan_model(
    problem: Problem,
    shape: tuple[int, ...],
    micro_batches: int,
    *,
    work: frozenset[str] | None = None,
    memory_bytes: float | None = None,
    comm: Collectives | None = None,
    time_limit_s: float = 30.0,
) -> ModelOperatorPlan | None:
    """The cheapest plan on a mesh; None when nothing fits.

    Args:
        problem: its model is lowered.
        shape: devices along each mesh dimension, the fastest links last.
        micro_batches: of a step.
        work: axes that einsums may be split by; None: all.
        memory_bytes: of one device; None: what the GPU leaves.
        comm: costs; None: the cluster's, in seconds.
        time_limit_s: of the solver.

    Raises:
        SpecError: a layer has an operator that cannot be lowered.
    """
    mesh = Mesh(shape, even=True)
    parts = model_parts(problem, problem.training.global_batch_size // micro_batches)
    comm = comm or cluster_collectives(problem, shape)
    options = [[options_of(p.layer.graph, i, mesh, comm, None, work) for i in range(len(p.layer.graph.nodes))] for p in parts]
    if any(not o for part in options for o in part):
        return None
    joined = _Joined(problem, mesh, comm, parts, options, micro_batches)
    limit = device_budget(problem) if memory_bytes is None else memory_bytes
    memory = joined.memory()
    if sum(min(held) for held in memory.values()) > limit:
        return None
    assignment = Assignment.of(joined.costs(), joined.tables(), [(memory, limit)])
    smaller = reduce_assignment(assignment)
    if smaller is None:
        return None
    solved = solve_assignment(smaller.problem, time_limit_s=time_limit_s)
    if solved.choice is None:
        return None
    return joined.plan(smaller.expand(solved.choice), assignment, solved.gap)


def model_parts(problem: Problem, sequences: int) -> tuple[Part, ...]:
    """Classes of layers and the head as graphs of one micro-batch."""
    arch, seq_len = problem.arch, problem.training.seq_len
    classes = arch.layer_classes()
    names = Counter(layer.kind for layer, _ in classes)
    out = []
    for c, (layer, where) in enumerate(classes):
        name = layer.kind if names[layer.kind] == 1 else f"{layer.kind} {c}"
        out.append(Part(name, len(where), layer_graph(layer, arch, sequences, seq_len)))
    return (*out, Part(HEAD, 1, head_graph(arch, sequences, seq_len)))


def device_budget(problem: Problem) -> float:
    """Bytes of a GPU less its context."""
    gpu = problem.cluster.gpu
    return gpu.memory_bytes - gpu.training.get("context_bytes", problem.constant("memory_context_bytes"))


def cluster_collectives(problem: Problem, shape: tuple[int, ...]) -> Collectives:
    """Seconds on the problem's cluster; the last dimension's devices are neighbours."""
    hw = TrainingHardware.of(problem)
    net = hw.network
    stride = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]

    def gather(d: int, n_bytes: float) -> float:
        return float(net.gather(np.asarray(n_bytes), np.asarray(float(shape[d])), stride[d]))

    return Collectives(
        all_reduce=lambda d, n: float(net.all_reduce(np.asarray(n), np.asarray(float(shape[d])), stride[d])),
        all_gather=gather,
        reduce_scatter=gather,
        all_to_all=lambda d, n: gather(d, n / shape[d]),
        touch=lambda n: PASSES * n / hw.hbm_bytes_per_s,
    )


class _Joined:
    """The parts' nodes numbered through, with what each costs a step."""

    def __init__(
        self, problem: Problem, mesh: Mesh, comm: Collectives, parts: tuple[Part, ...], options: list[list[list[Option]]], m: int
    ) -> None:  # fmt: skip
        self.problem, self.mesh, self.comm, self.parts, self.options, self.m = problem, mesh, comm, parts, options, m
        self.offset = np.concatenate([[0], np.cumsum([len(p.layer.graph.nodes) for p in parts])]).astype(int)
        self.gradients = [_gradients(p.layer) for p in parts]
        # Gradients are reduced as wide as they are kept.
        self.wide = gradient_buffer_bytes(problem) / ELEMENT_BYTES

    def copies(self, p: int) -> int:
        """Layers that a part stands for; an embedding of its own is counted like the head."""
        part = self.parts[p]
        return part.count if part.name != HEAD else 1 if self.problem.arch.tied_embeddings else 2

    def weight(self, p: int, i: int) -> float:
        """How often a step runs node ``i``, times what of it is wider than an activation."""
        if i in self.gradients[p]:
            return self.copies(p) * self.wide
        once = self.parts[p].layer.graph.nodes[i].kind == "update"
        return self.copies(p) if once else self.parts[p].count * self.m

    def edge_weight(self, p: int, j: int, i: int) -> float:
        """How often a step brings node ``j``'s result to node ``i``."""
        if self.parts[p].layer.graph.nodes[i].kind == "update":
            return self.copies(p) * (self.wide if j in self.gradients[p] else 1.0)
        return self.parts[p].count * self.m

    def costs(self) -> list[list[float]]:
        return [[o.cost * self.weight(p, i) for o in opts] for p, part in enumerate(self.options) for i, opts in enumerate(part)]

    def tables(self) -> Tables:
        out: Tables = {}
        for p, part in enumerate(self.parts):
            graph = part.layer.graph
            for i, node in enumerate(graph.nodes):
                for at, j in enumerate(node.inputs):
                    table = reshardings(graph.bytes(j), self.mesh, self.comm, self.options[p][j], self.options[p][i], at)
                    self._add(out, p, j, p, i, table * self.edge_weight(p, j, i))
                if node.kind == "update":  # the new values go back to where the parameter lies
                    back = reshardings(graph.bytes(i), self.mesh, self.comm, self.options[p][i], self.options[p][node.inputs[0]])
                    self._add(out, p, i, p, node.inputs[0], back * self.copies(p))
        for (a, b), n in self.transitions().items():
            self._pass(out, a, self.parts[a].layer.leaves, b, self.parts[b].layer.enters, n)
            self._pass(out, b, self.parts[b].layer.gradient_leaves, a, self.parts[a].layer.gradient_enters, n)
        return out

    def transitions(self) -> Counter[tuple[int, int]]:
        """How often a layer of one part is followed by one of another; in front of the first, the embedding is like it."""
        of_layer = np.zeros(self.problem.arch.num_layers, dtype=int)
        for c, (_, where) in enumerate(self.problem.arch.layer_classes()):
            of_layer[list(where)] = c
        order = [int(of_layer[0]), *(int(c) for c in of_layer), len(self.parts) - 1]
        return Counter(pairwise(order))

    def _pass(self, out: Tables, p: int, j: int | None, q: int, i: int | None, n: int) -> None:
        assert j is not None, "only the head passes nothing on"
        assert i is not None, "only the head gets no gradient"
        n_bytes = self.parts[p].layer.graph.bytes(j)
        table = reshardings(n_bytes, self.mesh, self.comm, self.options[p][j], self.options[q][i])
        self._add(out, p, j, q, i, table * (n * self.m))

    def _add(self, out: Tables, p: int, j: int, q: int, i: int, table: Array) -> None:
        u, v = int(self.offset[p] + j), int(self.offset[q] + i)
        if (v, u) in out:
            out[v, u] = out[v, u] + table.T
        else:
            out[u, v] = out[u, v] + table if (u, v) in out else table

    def memory(self) -> dict[int, list[float]]:
        """Bytes of one device by node and option."""
        c = self.problem.constant
        out = {}
        for p, part in enumerate(self.parts):
            graph = part.layer.graph
            kept = _kept(part.layer)
            for i, node in enumerate(graph.nodes):
                factor = self.copies(p) * {
                    "parameter": c("memory_weight_bytes") / ELEMENT_BYTES,
                    "update": c("memory_optimizer_bytes") / ELEMENT_BYTES,
                }.get(node.kind, self.wide if i in self.gradients[p] else 0.0)
                factor = part.count if i in kept else factor
                if factor:
                    n_bytes = factor * graph.bytes(i)
                    out[int(self.offset[p] + i)] = [divided(n_bytes, self.mesh, o.result) for o in self.options[p][i]]
        return out

    def plan(self, choice: tuple[int, ...], assignment: Assignment, gap: float) -> ModelOperatorPlan:
        chosen = tuple(
            tuple(opts[choice[self.offset[p] + i]] for i, opts in enumerate(part)) for p, part in enumerate(self.options)
        )
        held = sum(values[choice[v]] for v, values in self.memory().items())
        seconds: dict[str, float] = {}
        used: Counter[str] = Counter()
        for p, part in enumerate(self.parts):
            graph = part.layer.graph
            for i, node in enumerate(graph.nodes):
                name = "element-wise passes" if node.kind == "elementwise" else "reduction of activations"
                name = "reduction of gradients" if i in self.gradients[p] else name
                seconds[name] = seconds.get(name, 0.0) + chosen[p][i].cost * self.weight(p, i)
                used.update(chosen[p][i].collectives)
                for at, j in enumerate(node.inputs):
                    cost, kinds = resharding(graph.bytes(j), self.mesh, self.comm, chosen[p][j].result, chosen[p][i].operands[at])
                    what = "gathering of parameters" if graph.nodes[j].kind == "parameter" else "resharding of activations"
                    what = "reduction of gradients" if j in self.gradients[p] else what
                    seconds[what] = seconds.get(what, 0.0) + cost * self.edge_weight(p, j, i)
                    used.update(kinds)
        total = assignment.price(choice)
        rest = total - sum(seconds.values())
        seconds["new parameters, and the stream between layers"] = rest
        shown = {k: v for k, v in seconds.items() if v > 1e-6 * total}
        return ModelOperatorPlan(self.mesh, self.m, self.parts, chosen, total, shown, dict(used), float(held), gap)


def _gradients(layer: LayerGraph) -> frozenset[int]:
    """Nodes that are a parameter's whole gradient."""
    return frozenset(n.inputs[1] for n in layer.graph.nodes if n.kind == "update")


def _kept(layer: LayerGraph) -> frozenset[int]:
    """Results of the forward pass that the backward pass reads."""
    nodes = layer.graph.nodes
    read = {j for n in nodes if n.backward and n.kind != "update" for j in n.inputs}
    return frozenset(j for j in read if not nodes[j].backward and nodes[j].kind != "parameter")
