"""Plan a pipeline: cut the chain of layers into stages, then plan every stage on the mesh inside of it.

A plan of the whole module on the inner mesh, without a limit on memory, prices every layer: its time for one micro-batch, its
parameters and what it keeps. The dynamic program of ``solve.stages`` cuts by these prices, with as many micro-batches in
flight as the schedule holds; a stage that keeps too much pays for computing it again. Every stage is then a module of its
own: traced graph, search, program, memory. Neighbours agree on the placement of what crosses between them, so that each rank
sends its piece to the rank at the same place of the next stage.

The step of a 1F1B schedule with stage times T takes ``Σ T + (m − 1)·max T`` for m micro-batches; with v stages on each of p
ranks the pipeline fills faster: ``m·v·max T + (p − 1)/(p·v)·Σ T`` (Narayanan et al., arXiv 2104.04473, section 2.2).
Axis legend: as in ``solve.stages``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from autoparallel_core.errors import Infeasible, SpecError
from autoparallel_core.solve.stages import StageProblem, plan_stages
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.module_plan import ModulePlan, ModuleRequest
from autoparallel_pytorch.formulate import KINDS, UPDATE
from autoparallel_pytorch.graph import FORWARD, Graph
from autoparallel_pytorch.machine import Machine, Mesh
from autoparallel_pytorch.pipeline_cut import BOUNDARY, Chain
from autoparallel_pytorch.pipeline_document import pipeline_document
from autoparallel_pytorch.placement import Placements, text
from autoparallel_pytorch.planner import PIPELINE, Found, Planning, pins_of
from autoparallel_pytorch.program import Program
from autoparallel_pytorch.regions import classes
from autoparallel_pytorch.rules import Rules
from autoparallel_pytorch.structure import flatten
from autoparallel_pytorch.trace import bind, trace

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
SCHEDULES = ("1f1b", "gpipe", "interleaved")


@frozen
class Pipelining:
    """What the pipeline is: ``ranks`` in a row, each with ``per_rank`` stages, and the micro-batches of a step."""

    ranks: int
    per_rank: int
    micro_batches: int
    schedule: str

    @classmethod
    def of(cls, request: ModuleRequest, batch: int | None) -> Pipelining:
        """Raises SpecError when an option is wrong, or the batch does not go into the micro-batches."""
        ranks = request.mesh_sizes[0]
        schedule = str(request.options.get("schedule", "1f1b")).lower()
        if schedule not in SCHEDULES:
            raise SpecError(f"schedule '{schedule}' is not known: {', '.join(SCHEDULES)}")
        per_rank = int(request.options.get("stages_per_rank", 2 if schedule == "interleaved" else 1))
        if (per_rank > 1) != (schedule == "interleaved"):
            raise SpecError(f"schedule {schedule} with {per_rank} stages per rank: only interleaved takes more than one")
        if batch is None:
            raise SpecError("a pipeline splits the batch, and the inputs have no common first dimension")
        fine = (n for n in range(2 * ranks, batch + 1) if batch % n == 0 and (per_rank == 1 or n % ranks == 0))
        count = int(request.options.get("microbatches", 0)) or next(fine, batch)
        if count < 1 or batch % count:
            near = [n for n in range(1, batch + 1) if batch % n == 0]
            raise SpecError(f"a batch of {batch} does not go into {count} micro-batches; microbatches may be {near}")
        if schedule == "interleaved" and count % ranks:
            raise SpecError(f"interleaved stages need micro-batches in groups of {ranks}, and {count} are no multiple")
        return cls(ranks, per_rank, count, schedule)

    @property
    def n_stages(self) -> int:
        return self.ranks * self.per_rank

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose results a stage keeps, as the schedules of torch warm up."""
        m = self.micro_batches
        if self.schedule == "gpipe":
            return m
        rank = stage % self.ranks
        if self.per_rank == 1:
            return min(m, self.ranks - rank)
        warm = (self.per_rank - 1) * self.ranks + 2 * (self.ranks - 1 - rank) + 1
        return min(m, -(-warm // self.per_rank))

    def step_s(self, stages: Sequence[float], transfers: Sequence[float]) -> float:
        """Of stage times and of the transfers between them, each way once per micro-batch."""
        spread, repeat = self.weights()
        slowest = max(sum(stages[r :: self.ranks]) for r in range(self.ranks)) / self.per_rank
        return spread * (sum(stages) + 2.0 * sum(transfers)) + repeat * slowest

    def weights(self) -> tuple[float, float]:
        """Of the sum of all stages' times, and of the slowest one."""
        m, v, p = self.micro_batches, self.per_rank, self.ranks
        return (1.0, m - 1.0) if v == 1 else ((p - 1.0) / (p * v), float(m * v))


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


@frozen(eq=False)
class Layered:
    """What every unit of a chain takes, by a plan of the whole without a limit on memory. Axis: L units."""

    time_s: Array
    """Of one micro-batch, forward and backward, [L]."""
    forward_s: Array
    held_bytes: Array
    """Parameters, their gradients and state, [L]."""
    kept_bytes: Array
    """Of one micro-batch, [L]."""
    crossing: tuple[tuple[Placements, ...], ...]
    """Placements of what crosses, [L − 1]."""
    crossing_bytes: Array
    """Of one micro-batch on one GPU, [L − 1]."""

    @classmethod
    def of(cls, chain: Chain, planning: Planning) -> Layered:
        program = planning.free_program()
        graph, n = chain.graph, len(chain.units)
        unit = _units(chain)
        seconds = {k: np.zeros(n) for k in KINDS}
        forward = np.zeros(n)
        for step in program.steps:
            seconds[step.kind][unit[step.node]] += step.seconds
            if step.phase == FORWARD:
                forward[unit[step.node]] += step.seconds
        time = np.array([planning.objective.step_s({k: float(s[i]) for k, s in seconds.items()}) for i in range(n)])
        held, kept = np.zeros(n), _kept(program, unit, n)
        for name, v in program.parameters.items():
            info = program.values[v]
            trained = program.gradients.get(name) is not None
            width = info.bytes / max(1, int(np.prod(info.shape)))
            per_element = planning.settings.optimizer_bytes + width if trained else 0.0
            held[unit[graph.parameters[name]]] += info.bytes * (1.0 + per_element / width)
        crossing, sizes = [], np.zeros(n - 1)
        for i, cut in enumerate(chain.cuts):
            crossing.append(tuple(planning.crossing(t) for t in cut.tensors))
            for t, p in zip(cut.tensors, crossing[-1], strict=True):
                pieces = np.prod([s for q, s in zip(p, planning.machine.mesh.sizes, strict=True) if q >= 0])
                sizes[i] += graph.meta(t).bytes / float(pieces)
        return cls(time, forward, held, kept, tuple(crossing), sizes)

    def cut(self, pipe: Pipelining, limit_bytes: float) -> list[tuple[int, int]]:
        """First and last unit of every stage. Raises Infeasible when no cut fits, by these prices."""
        n, k = len(self.time_s), pipe.n_stages
        time = np.full((k, n, n, 1), np.inf)
        total = {x: np.concatenate([[0.0], np.cumsum(a)]) for x, a in self._arrays().items()}
        entering = np.concatenate([[0.0], self.crossing_bytes])
        limit = limit_bytes / pipe.per_rank
        for left in range(k):
            flight = pipe.in_flight(k - 1 - left)
            for i in range(n):
                for j in range(i, n):
                    t, f, held, kept = (total[x][j + 1] - total[x][i] for x in ("time", "forward", "held", "kept"))
                    # At the least, what enters every layer is kept; the rest can run again.
                    least = flight * float(entering[i : j + 1].sum())
                    over = held + flight * kept - limit
                    if over > 0:
                        spare = flight * kept - least
                        if over > spare:
                            continue
                        t += f * over / spare
                    time[left, i, j, 0] = t
        allowed = np.arange(1, k + 1) == k
        spread, repeat = pipe.weights()
        problem = StageProblem.of(
            time, np.zeros((1, 0), dtype=np.int64), np.zeros(0, dtype=np.int64),
            spread=np.full(k, spread), repeat=np.full(k, repeat), allowed=allowed,
        )  # fmt: skip
        best = plan_stages(problem).best
        if best is None:
            raise Infeasible(f"no cut into {k} stages fits in {limit_bytes / 1e9:.1f} GB; use more GPUs or smaller micro-batches")
        return [(s.first, s.last) for s in best.stages]

    def _arrays(self) -> dict[str, Array]:
        return {"time": self.time_s, "forward": self.forward_s, "held": self.held_bytes, "kept": self.kept_bytes}


def _units(chain: Chain) -> list[int]:
    """Unit per node; what is no part of the flow goes with the first node of the flow that needs it."""
    unit = list(chain.of)
    for node in reversed(chain.graph.nodes):
        if unit[node.id] >= 0:
            for ref in node.refs():
                if chain.of[ref.node] < 0:
                    unit[ref.node] = unit[node.id] if unit[ref.node] < 0 else min(unit[ref.node], unit[node.id])
    return [max(u, 0) for u in unit]


def _kept(program: Program, unit: Sequence[int], n: int) -> Array:
    """Bytes that one micro-batch keeps for the backward, by the unit that makes them."""
    outside = {v for t in (program.parameters, program.buffers, program.inputs, program.constants) for v in t.values()}
    maker = {v: step.node for step in program.steps for v in step.outs}
    kept = np.zeros(n)
    seen = set()
    for v in program.saved():
        root = v
        while (alias := program.values[root].alias) is not None:
            root = alias
        if root in seen or root in outside or not program.values[root].stored:
            continue
        seen.add(root)
        kept[unit[maker[root]]] += program.values[root].bytes
    return kept


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
