"""From a module to its plan: trace, find classes and options, search, write the program and the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.module_plan import ModulePlan, ModuleRequest
from autoparallel_pytorch.emit import check_shapes, emit
from autoparallel_pytorch.exact import Exact
from autoparallel_pytorch.formulate import KINDS, UPDATE, Formulation, Narrow, Settings, formulate
from autoparallel_pytorch.graph import FORWARD, Graph, Ref
from autoparallel_pytorch.layer_numbers import Layers
from autoparallel_pytorch.layers import best_mix, patterns
from autoparallel_pytorch.machine import Machine, Mesh
from autoparallel_pytorch.memory import Timeline, timeline
from autoparallel_pytorch.mesh_search import MeshSearch
from autoparallel_pytorch.placement import P, Placements, R, parse, shards
from autoparallel_pytorch.prices import Prices
from autoparallel_pytorch.program import Program
from autoparallel_pytorch.recompute import AGAIN, States, states_of
from autoparallel_pytorch.regions import Classes, classes
from autoparallel_pytorch.rules import Rules, check_version
from autoparallel_pytorch.search import Choice, Objective, Outcome, Point, Search
from autoparallel_pytorch.trace import trace
from autoparallel_pytorch.transitions import Transitions
from autoparallel_pytorch.uneven import uneven

if TYPE_CHECKING:
    import torch

PIPELINE = "pp"
"""A mesh dimension of this name, outermost, is a pipeline."""
MOMENTS_BYTES = 8.0
"""Adam's two moments in fp32, per parameter."""
MASTER_BYTES = 4.0
"""An fp32 copy of a 16-bit parameter."""


def plan_module(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], request: ModuleRequest) -> ModulePlan:
    """The plan of least predicted step time that fits; without mesh sizes, over the shapes of :mod:`.mesh_search`.

    Raises:
        SpecError: the module cannot be traced, or a pin is wrong.
        Infeasible: nothing fits in memory.
    """
    from autoparallel_pytorch.document import document

    if request.mesh_names[:1] == (PIPELINE,):
        from autoparallel_pytorch.pipeline_plan import plan_pipeline

        return plan_pipeline(module, args, kwargs, request)
    if PIPELINE in request.mesh_names:
        raise SpecError(f"mesh dimension {PIPELINE} is a pipeline and has to be the outermost one")
    graph = trace(module, args, kwargs)
    if request.mesh_sizes:
        planning = Planning.of(graph, request)
        return document(module, planning, planning.search())
    shapes = MeshSearch(graph, request)
    planning, found = shapes.run()
    return ModulePlan({**document(module, planning, found).document, "meshes": shapes.said})


@define(eq=False)
class Found:
    """The search's result, written out."""

    outcome: Outcome
    program: Program
    memory: Timeline
    recomputed: frozenset[int]
    """Operators that run again in the backward."""
    choice: Choice
    seconds: dict[str, float]
    placements: tuple[int, ...] = ()
    """Option per slot of the planning's problem."""


@define(eq=False)
class Planning:
    """One question: a graph on a mesh of a cluster."""

    graph: Graph
    request: ModuleRequest
    machine: Machine
    classes: Classes
    rules: Rules
    prices: Prices
    transitions: Transitions
    settings: Settings
    objective: Objective
    limit_bytes: float
    notes: list[str] = field(factory=list)
    in_flight: int = 1
    """Micro-batches that keep what their backward reads; of a pipeline's stage."""
    micro_batches: int = 1
    form: Formulation = field(init=False)
    _search: Search | None = field(default=None)

    @classmethod
    def of(
        cls, graph: Graph, request: ModuleRequest, rules: Rules | None = None, *, in_flight: int = 1, micro_batches: int = 1
    ) -> Planning:
        """``graph`` is of one micro-batch."""
        mesh = Mesh(request.mesh_names, request.mesh_sizes)
        machine = Machine(request.cluster, mesh)
        optimizer = _optimizer_bytes(graph, request)
        settings = Settings(
            optimizer_bytes=optimizer,
            update_bytes=_update_bytes(graph, optimizer) / micro_batches,
            pins=pins_of(graph, request.pins, len(mesh.sizes)),
            replicate_results=bool(request.options.get("replicate_results", False)),
        )
        limit = request.memory_limit_bytes
        if limit is None:
            limit = request.cluster.gpu.memory_bytes - machine.constants["memory_context_bytes"]
        rules = rules or Rules(request.options.get("rules"))
        planning = cls(
            graph, request, machine, classes(graph, tie=bool(request.options.get("tie_layers", True))), rules,
            Prices(machine, graph, request.options.get("flops") or {}), Transitions(machine), settings,
            Objective(machine.constants["overlap_loss"]), limit,
        )  # fmt: skip
        planning.in_flight, planning.micro_batches = in_flight, micro_batches
        if (sentence := check_version()) is not None:
            planning.notes.append(sentence)
        planning.notes += uneven(graph, mesh)
        return planning

    @property
    def n_dims(self) -> int:
        return len(self.machine.mesh.sizes)

    def formulate(self, narrow: Narrow | None = None) -> Formulation:
        """The problem, over all rules or some of them."""
        return formulate(self.graph, self.classes, self.rules, self.prices, self.transitions, self.settings, narrow)

    def states(self, form: Formulation) -> States:
        found = states_of(self.graph, self.classes, form, self.machine.mesh.sizes, self.settings.optimizer_bytes)
        kept = zip(found.kept_bytes, found.fixed, strict=True)
        return evolve(found, kept_bytes=tuple(b if fixed else self.in_flight * b for b, fixed in kept))

    def bound_s(self) -> float:
        """No plan takes less time, whatever memory there is. Raises Infeasible when pins leave no plan."""
        return self._opened().open()

    def free_program(self) -> Program:
        """Of the fastest choice without a limit on memory. Raises Infeasible when pins leave no plan."""
        search = self._opened()
        search.open()
        assert search.free is not None, "opened"
        placements = self._placements(search.free.choice)
        return emit(self.graph, self.classes, self.form, placements, self.prices, self.transitions, frozenset())

    def crossing(self, ref: Ref) -> Placements:
        """Where a tensor is smallest in the fastest choice without a limit on memory: as it is made, or as it is read.

        Sums are made whole.
        """
        search = self._opened()
        assert search.free is not None, "opened"
        picks, sizes = search.free.choice.picks, self.machine.mesh.sizes
        found = []
        for key, out in (
            (("hub", self.classes.of[ref.node], ref.out, FORWARD), 0),
            (("op", self.classes.of[ref.node], 0, 0), ref.out),
        ):
            if key in picks:
                slot = self.form.slots[self.form.index[key]]
                given = slot.outs[slot.picks.index(picks[key])][out]
                found.append(tuple(R if p <= P else p for p in given))
        return max(found, key=lambda p: shards(p, sizes))

    def _opened(self) -> Search:
        if self._search is None:
            limit = self.request.time_limit_s
            self.form = self.formulate()
            problem = Exact(self.form, self.graph, self.states(self.form), self.objective, limit)
            shares = max(Layers.find(self.graph, self.classes).weights(self.graph), default=1) > 1
            alone = self._alone if shares else None
            self._search = Search(problem, self.objective, self.limit_bytes, self._measure, limit, alone=alone)
        return self._search

    def _alone(self) -> Exact:
        """The problem with every tensor's weight traffic by itself."""
        settings = evolve(self.settings, sharing=False)
        form = formulate(self.graph, self.classes, self.rules, self.prices, self.transitions, settings)
        return Exact(form, self.graph, self.states(form), self.objective, self.request.time_limit_s)

    def search(self) -> Found:
        """Raises Infeasible when nothing fits."""
        return self.finished(self.outcome())

    def outcome(self) -> Outcome:
        """The choice of the search, with one pattern of recomputation for all layers. Raises Infeasible when nothing fits."""
        return self._opened().run()

    def finished(self, outcome: Outcome) -> Found:
        """Written out, with as little recomputation as fits."""
        found = self._written(outcome, outcome.best.choice, self._again(outcome.best.choice))
        for point in (outcome.best, outcome.below):
            if point is not None and found.recomputed:
                found = self._less_recomputed(found, point)
        check_shapes(found.program)
        found.placements = self._placements(found.choice)
        return found

    def _less_recomputed(self, found: Found, point: Point) -> Found:
        """The same placements, or those of the point below, with as little recomputation as fits."""
        form, placements = self.form, self._placements(point.choice)
        layers = Layers.find(self.graph, self.classes)
        price = max(point.price, found.outcome.best.price)
        sets = patterns(form, self.graph, self.classes, self.states(form), self.objective, placements, price, point.share)
        tried: dict[frozenset[int], Found] = {}

        def fits(again: frozenset[int]) -> bool:
            tried[again] = self._written(found.outcome, point.choice, again)
            return tried[again].memory.peak_bytes <= self.limit_bytes

        least = best_mix(sets, layers, fits)
        if least is None:
            return found
        other = tried[least]
        return other if self.objective.step_s(other.seconds) < self.objective.step_s(found.seconds) else found

    def _placements(self, choice: Choice) -> tuple[int, ...]:
        """Option per slot."""
        return tuple(slot.picks.index(choice.picks[slot.key]) for slot in self.form.slots)

    def _again(self, choice: Choice) -> frozenset[int]:
        """The operators that run again."""
        again = {key[1] for key, state in choice.states.items() if key[0] == "op" and state == AGAIN}
        return frozenset(n.id for n in self.graph.nodes if self.classes.of[n.id] in again)

    def _written(self, outcome: Outcome, choice: Choice, recomputed: frozenset[int]) -> Found:
        program, seconds, memory = self._run(choice, recomputed)
        return Found(outcome, program, memory, recomputed, choice, seconds)

    def _measure(self, point: Point) -> tuple[float, float]:
        """Memory of a point's program at its highest, and its step."""
        _, seconds, memory = self._run(point.choice, self._again(point.choice))
        return memory.peak_bytes, self.objective.step_s(seconds)

    def _run(self, choice: Choice, recomputed: frozenset[int]) -> tuple[Program, dict[str, float], Timeline]:
        """The program of a choice, its time by kind, its memory."""
        form, placements = self.form, self._placements(choice)
        program = emit(self.graph, self.classes, form, placements, self.prices, self.transitions, recomputed)
        seconds = dict.fromkeys(KINDS, 0.0)
        for step in program.steps:
            seconds[step.kind] += step.seconds
        seconds[UPDATE] = sum(float(s.cost[UPDATE][k]) for s, k in zip(form.slots, placements, strict=True) if UPDATE in s.cost)
        return program, seconds, self._timeline(program)

    def _timeline(self, program: Program) -> Timeline:
        return timeline(
            program, optimizer_bytes=self.settings.optimizer_bytes, in_flight=self.in_flight, accumulates=self.micro_batches > 1
        )


def _optimizer_bytes(graph: Graph, request: ModuleRequest) -> float:
    if request.optimizer_bytes is not None:
        return request.optimizer_bytes
    metas = [graph.nodes[n].outs[0] for n in graph.parameters.values()]
    half = sum(m.elements for m in metas if m is not None and m.dtype in ("bfloat16", "float16"))
    every = sum(m.elements for m in metas if m is not None)
    return MOMENTS_BYTES + (MASTER_BYTES * half / every if every else 0.0)


def _update_bytes(graph: Graph, optimizer_bytes: float) -> float:
    """Each state read and written, the gradient read, the parameter read and written."""
    metas = [graph.nodes[n].outs[0] for n in graph.parameters.values()]
    every = sum(m.elements for m in metas if m is not None)
    width = sum(m.bytes for m in metas if m is not None) / every if every else 4.0
    return 2.0 * optimizer_bytes + 3.0 * width


def pins_of(graph: Graph, pins: Mapping[str, str], n_dims: int) -> dict[str, Placements]:
    """Pins by the full names that their patterns match. Raises SpecError when one matches nothing."""
    from autoparallel_core.naming import near_names

    names = [n.name for n in graph.nodes] + [f"output {i}" for i in range(len(graph.outputs))]
    found: dict[str, Placements] = {}
    for pattern, value in pins.items():
        wanted = parse(value, n_dims)
        matched = [n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.weight")]
        if not matched:
            near = near_names(pattern, names, limit=2)
            raise SpecError(
                f"pin {pattern} matches no parameter, input, output or operator"
                + (f"; did you mean {' or '.join(near)}?" if near else "")
            )
        found |= dict.fromkeys(matched, wanted)
    return found
