"""Plan a pipeline: cut the chain of layers into stages, then plan every stage on the mesh inside of it.

A plan of the whole module on the inner mesh prices every layer (``pipeline_layers``), the dynamic program of ``solve.stages``
cuts by these prices. Every stage is then a module of its own: graph, search, program, memory. Neighbours agree on the
placement of what crosses between them, so that each rank sends its piece to the rank at the same place of the next stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from autoparallel_core.errors import Infeasible, SpecError
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.module_plan import ModulePlan, ModuleRequest
from autoparallel_pytorch.formulate import UPDATE
from autoparallel_pytorch.graph import Graph
from autoparallel_pytorch.machine import Machine, Mesh
from autoparallel_pytorch.pipeline_cut import BOUNDARY, Chain
from autoparallel_pytorch.pipeline_document import pipeline_document
from autoparallel_pytorch.pipeline_layers import Layered
from autoparallel_pytorch.pipeline_schedule import Pipelining
from autoparallel_pytorch.placement import text
from autoparallel_pytorch.planner import PIPELINE, Found, Planning, pins_of
from autoparallel_pytorch.regions import classes
from autoparallel_pytorch.rules import Rules
from autoparallel_pytorch.structure import flatten
from autoparallel_pytorch.trace import bind, trace

if TYPE_CHECKING:
    import torch


@frozen(eq=False)
class Stage:
    """A stage as it was planned."""

    first: int
    last: int
    planning: Planning
    found: Found
    in_flight: int

    @property
    def time_s(self) -> float:
        """Of one micro-batch, without the optimizer."""
        return self.planning.objective.step_s({**self.found.seconds, UPDATE: 0.0})

    @property
    def update_s(self) -> float:
        """Once per step."""
        return self.found.seconds[UPDATE] * self.planning.micro_batches


def plan_pipeline(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], request: ModuleRequest) -> ModulePlan:
    """The plan of a pipeline over the outermost mesh dimension.

    Options:
        microbatches: per step; twice the ranks by default.
        schedule: ``1f1b``, ``gpipe`` or ``interleaved``.
        stages_per_rank: with ``interleaved``; 2 by default.

    Raises:
        SpecError: no inner mesh, a wrong option, or a module that cannot be cut.
        Infeasible: a stage does not fit.
    """
    if len(request.mesh_sizes) < 2:
        raise SpecError(f"a pipeline plans its stages on an inner mesh: write {PIPELINE}={request.mesh_sizes[0]},dp=1 at least")
    batch = _batch(module, args, kwargs)
    pipe = Pipelining.of(request, batch)
    assert batch is not None, "checked with the options"
    graph = trace(module, *_micro(args, kwargs, batch, batch // pipe.micro_batches))
    _check(graph)
    chain = Chain.find(graph, classes(graph))
    if len(chain.units) < pipe.n_stages:
        raise SpecError(f"{pipe.n_stages} stages need as many layers, and the module has {len(chain.units)}")
    inner = evolve(
        request, cluster=_part(request.cluster, pipe.ranks), mesh_names=request.mesh_names[1:], mesh_sizes=request.mesh_sizes[1:]
    )
    pins_of(graph, inner.pins, len(inner.mesh_sizes))  # a pin that no stage has is refused here
    rules = Rules(request.options.get("rules"))
    whole = Planning.of(graph, inner, rules, micro_batches=pipe.micro_batches)
    layers = Layered.of(chain, whole)
    stages = []
    for i, (first, last) in enumerate(layers.cut(pipe, whole.limit_bytes)):
        stages.append(_stage(chain, layers, inner, rules, pipe, whole.limit_bytes, i, first, last))
    machine = Machine(request.cluster, Mesh(request.mesh_names, request.mesh_sizes))
    return pipeline_document(module, request, machine, pipe, chain, stages)


def _check(graph: Graph) -> None:
    """Raises SpecError for what schedules of torch cannot take."""
    nested = [n for n in graph.inputs if not n.isidentifier()]
    if nested:
        raise SpecError(f"a pipeline takes tensors as keyword arguments, and {nested[0]} is nested in another argument")
    if not any(t is not None and not graph.meta(r).shape for r, t in zip(graph.outputs, graph.tangents, strict=True)):
        raise SpecError(
            "a pipeline trains on the loss that the module returns: let forward return a scalar, alone or among others"
        )


def _stage(
    chain: Chain,
    layers: Layered,
    inner: ModuleRequest,
    rules: Rules,
    pipe: Pipelining,
    limit_bytes: float,
    index: int,
    first: int,
    last: int,
) -> Stage:
    graph = chain.stage(first, last)
    names = {n.name for n in graph.nodes}
    if last == len(chain.units) - 1:
        names |= {f"output {j}" for j in range(len(graph.outputs))}
    pins = {n: text(p) for n, p in pins_of(chain.graph, inner.pins, len(inner.mesh_sizes)).items() if n in names}
    if first:
        pins |= {f"{BOUNDARY}{j}": text(p) for j, p in enumerate(layers.crossing[first - 1])}
    if last < len(chain.units) - 1:
        pins |= {f"output {j}": text(p) for j, p in enumerate(layers.crossing[last])}
    planning = Planning.of(
        graph, evolve(inner, pins=pins, memory_limit_bytes=limit_bytes / pipe.per_rank), rules,
        in_flight=pipe.in_flight(index), micro_batches=pipe.micro_batches,
    )  # fmt: skip
    try:
        found = planning.search()
    except Infeasible as e:
        raise Infeasible(f"stage {index} ({chain.units[first]} to {chain.units[last]}): {e}") from e
    return Stage(first, last, planning, found, pipe.in_flight(index))


def _part(cluster: Cluster, ranks: int) -> Cluster:
    """The GPUs of one stage: neighbours of each other."""
    n = cluster.n_gpus // ranks
    return evolve(cluster, n_gpus=n, gpus_per_node=min(cluster.gpus_per_node, n))


def _batch(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    import torch

    leaves, _ = flatten(bind(module.forward, args, kwargs))
    sizes = {int(x.shape[0]) for x in leaves if isinstance(x, torch.Tensor) and x.ndim}
    return sizes.pop() if len(sizes) == 1 else None


def _micro(args: Sequence[Any], kwargs: Mapping[str, Any], batch: int, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one micro-batch."""
    import torch

    def first(value: Any) -> Any:
        leaves, structure = flatten(value)
        cut = [x[:size] if isinstance(x, torch.Tensor) and x.ndim and x.shape[0] == batch else x for x in leaves]
        return structure.build(cut)

    return tuple(first(a) for a in args), {k: first(v) for k, v in kwargs.items()}
