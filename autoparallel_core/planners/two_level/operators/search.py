"""The best mesh and number of micro-batches for a sharding per operator, in words, beside plans of one idea."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoparallel_core.errors import SpecError
from autoparallel_core.planners.two_level.operators.graph import Graph
from autoparallel_core.planners.two_level.operators.lowering import TOKENS
from autoparallel_core.planners.two_level.operators.model_plan import ModelOperatorPlan, device_budget, plan_model
from autoparallel_core.planners.two_level.operators.shardings import Option
from autoparallel_core.search.result import OperatorAnswer, OperatorRow
from autoparallel_core.spec.problem import Problem

TRIED = 2
"""Numbers of micro-batches beyond the first that fits, and it: more of them only repeat collectives."""
LIMIT_S = 10.0
"""Of the solver, for one mesh."""
_AXES = {
    "b": "batch", "s": "sequence", "t": "keys", "kv": "heads", "group": "heads of a group", "expert_ffn": "expert width",
}  # fmt: skip


def search_operators(problem: Problem) -> OperatorAnswer | None:
    """The cheapest sharding of every operator on one stage of all GPUs; None when nothing fits.

    Raises:
        SpecError: the cluster's number of GPUs forms no mesh, or a layer cannot be lowered.
    """
    best: ModelOperatorPlan | None = None
    tried = 0
    for shape in meshes(problem):
        fitting = 0
        for m in _divisors_by_two(problem.training.global_batch_size):
            found = plan_model(problem, shape, m, time_limit_s=LIMIT_S)
            tried += 1
            if found is None:
                continue
            if best is None or found.step_s < best.step_s:
                best = found
            fitting += 1
            if fitting == TRIED:
                break
    return None if best is None else _answer(problem, best, tried)


def meshes(problem: Problem) -> list[tuple[int, ...]]:
    """One dimension inside a domain of fast links, and two whose second stays inside it."""
    n = problem.cluster.n_gpus
    fast = min(problem.cluster.gpus_per_node, n)
    if n < 2:
        raise SpecError("a sharding per operator needs several GPUs; there is one")
    pairs = [(n // b, b) for b in range(2, fast + 1) if fast % b == 0 and n % b == 0 and n // b > 1]
    return [*([(n,)] if n <= fast else []), *pairs]


def _divisors_by_two(batch: int) -> Iterator[int]:
    m = 1
    while batch % m == 0:
        yield m
        m *= 2


def _answer(problem: Problem, plan: ModelOperatorPlan, tried: int) -> OperatorAnswer:
    others = []
    for name, work in _one_idea(problem, plan).items():
        other = plan_model(problem, plan.mesh.shape, plan.micro_batches, work=work, time_limit_s=LIMIT_S)
        others.append((name, None if other is None else other.step_s))
    return OperatorAnswer(
        mesh=plan.mesh.shape,
        micro_batches=plan.micro_batches,
        rows=tuple(_rows(plan)),
        seconds=plan.seconds,
        step_s=plan.step_s,
        held_bytes=plan.held_bytes,
        budget_bytes=device_budget(problem),
        others=tuple(others),
        gap=plan.gap,
        notes=(
            f"{tried} meshes and numbers of micro-batches were solved; all layers of a class alike, one stage, no recompute",
            "collectives are counted whole, nothing is hidden behind computation; computation is split evenly by every plan",
            "the embedding is counted like the head and passes the stream on like a layer; vectors (norms, biases) are left out",
        ),
    )


def _one_idea(problem: Problem, plan: ModelOperatorPlan) -> dict[str, frozenset[str]]:
    """Plans that split the work of all operators by the same kind of axis, state and weights sharded as is best."""
    axes = {a for part in plan.parts for a in part.layer.graph.sizes}
    out = {
        "data parallel alone": frozenset({"b"}),
        "tensor parallel alone": frozenset(axes - {*TOKENS, "t"}),
        "sequence alone": frozenset({"s"}),
    }
    if problem.arch.num_experts:
        out["data and expert parallel"] = frozenset({"b", "experts"})
    return out


def _rows(plan: ModelOperatorPlan) -> Iterator[OperatorRow]:
    for part, options in zip(plan.parts, plan.options, strict=True):
        graph = part.layer.graph
        for i, node in enumerate(graph.nodes):
            if node.kind != "einsum" or node.backward:
                continue
            weight = next((j for j in node.inputs if graph.nodes[j].kind == "parameter"), None)
            update = None if weight is None else next(u for u in graph.users(weight) if graph.nodes[u].kind == "update")
            state = None if update is None else options[update]
            held = None if weight is None else options[weight]
            yield OperatorRow(
                part=part.name,
                layers=part.count,
                operator=node.name,
                scheme=tuple(scheme(graph, i, options[i], held, state, d) for d in range(len(plan.mesh.shape))),
                work=_words(work_axes(options[i], len(plan.mesh.shape))),
                weights="" if held is None else _words(held.result),
                state="" if state is None else _words(state.result),
                moves=", ".join(options[i].collectives),
            )


def work_axes(option: Option, dimensions: int) -> tuple[str | None, ...]:
    """The axis by which each mesh dimension splits an einsum's work."""
    found = []
    for d in range(dimensions):
        axes = [o[d] for o in option.operands if o[d] is not None]
        found.append(axes[0] if axes else option.result[d])
    return tuple(found)


def scheme(graph: Graph, i: int, option: Option, weight: Option | None, state: Option | None, d: int) -> str:
    """What is done along a mesh dimension, by its usual name."""
    axis = work_axes(option, d + 1)[d]
    if axis is None:
        return "–"
    if weight is None or state is None:
        return "heads" if axis in {"kv", "group"} else _AXES.get(axis, axis)
    if axis in TOKENS:
        kind = "data" if axis == "b" else "sequence"
        if weight.result[d] is not None:
            return f"{kind}, ZeRO-3"
        return f"{kind}, ZeRO-1" if state.result[d] is not None else kind
    if axis == "experts":
        return "experts"
    return "columns" if axis in graph.nodes[i].axes else "rows"


def _words(sharding: Sequence[str | None]) -> str:
    """``heads, –`` for a sharding over two dimensions."""
    if all(a is None for a in sharding):
        return "whole"
    return ", ".join("–" if a is None else _AXES.get(a, a) for a in sharding)
