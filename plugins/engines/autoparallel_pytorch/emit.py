"""From a choice of placements to the program that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.bucket import bucketed
from autoparallel_pytorch.formulate import EXCHANGE, WEIGHTS, Formulation
from autoparallel_pytorch.graph import BACKWARD, FORWARD, Dtype, Graph, Meta, Node, Ref, map_refs
from autoparallel_pytorch.layer_numbers import Layers
from autoparallel_pytorch.local_regions import REGIONS
from autoparallel_pytorch.localize import SIZE_ARGUMENT, lengths, localized
from autoparallel_pytorch.machine import Machine
from autoparallel_pytorch.placement import Placements, R, cuts, local_shape
from autoparallel_pytorch.prices import Prices
from autoparallel_pytorch.program import Info, Length, Offset, Program, Step, Value
from autoparallel_pytorch.region_program import write
from autoparallel_pytorch.regions import Classes
from autoparallel_pytorch.transitions import Transitions
from autoparallel_pytorch.views import Step as View
from autoparallel_pytorch.views import carry, chain_of, is_view


def emit(
    graph: Graph,
    classes: Classes,
    form: Formulation,
    choice: Sequence[int],
    prices: Prices,
    transitions: Transitions,
    recompute: frozenset[int] = frozenset(),
) -> Program:
    """The program of a choice; the operators in ``recompute`` run again in the backward instead of keeping their results."""
    return _Emitter(graph, classes, form, tuple(choice), prices, transitions, recompute).run()


@define(eq=False)
class _Emitter:
    graph: Graph
    classes: Classes
    form: Formulation
    choice: tuple[int, ...]
    prices: Prices
    transitions: Transitions
    recompute: frozenset[int]
    program: Program = field(factory=Program)
    _at: dict[tuple[Ref, Placements, int], int] = field(factory=dict)
    """(tensor, placement, phase) → value. A forward value serves the backward only as its operator gave it."""
    _viewed: dict[tuple[int, Placements, int], int] = field(factory=dict)
    _phase: int = FORWARD
    _sharing: list[int] = field(factory=list)
    """Per operator the tensors that its layer's weight traffic goes with."""
    regions: dict[Any, dict[Ref, int]] = field(factory=dict)
    """Values inside of regions, which their backward reads."""

    @property
    def machine(self) -> Machine:
        return self.prices.machine

    def run(self) -> Program:
        p = self.program
        p.batch = self.graph.batch
        layers = Layers.find(self.graph, self.classes)
        self._sharing = layers.weights(self.graph)
        results_placed = False
        p.gradients = dict.fromkeys(self.graph.gradients)
        made = self._gradients_of()
        for node in self.graph.nodes:
            if node.phase == BACKWARD and not results_placed:
                self._results()
                results_placed = True
            self._phase = node.phase
            if node.placeholder:
                self._placeholder(node)
            elif not is_view(node):
                self._operator(node)
            for name, ref in made.get(node.id, ()):
                # At once: a sum over ranks that waits for the end would keep the whole gradient until then.
                self._phase = BACKWARD
                p.gradients[name] = self._gradient(self.graph.parameters[name], ref, WEIGHTS)
        if not results_placed:
            self._results()
        self._phase = BACKWARD
        for name, ref in self.graph.input_gradients.items():
            p.input_gradients[name] = self._gradient(self.graph.inputs[name], ref, EXCHANGE)
        bucketed(p, layers.of, self.machine)
        return p

    def _gradients_of(self) -> dict[int, list[tuple[str, Ref]]]:
        """Gradients of parameters by the operator that makes them."""
        found: dict[int, list[tuple[str, Ref]]] = {}
        for name, ref in self.graph.gradients.items():
            if ref is not None:
                base, _ = chain_of(self.graph, ref)
                found.setdefault(base.node, []).append((name, ref))
        return found

    # --- placeholders, results, gradients -----------------------------------------------------------------------

    def _placeholder(self, node: Node) -> None:
        meta = node.outs[0]
        assert meta is not None, "placeholders are tensors"
        if node.op == "tangent":
            i = self.graph.tangents.index(node.id)
            placements = self._chosen(("result", i, 0, 0)).outs[self._pick(("result", i, 0, 0))][0]
        else:
            placements = self._option(node)[0][0]
        v = self._value(meta.shape, meta.dtype, placements)
        self._at[Ref(node.id), placements, node.phase] = v
        if node.op == "tangent":
            self.program.tangents[self.graph.tangents.index(node.id)] = v
        else:
            {
                "parameter": self.program.parameters,
                "buffer": self.program.buffers,
                "input": self.program.inputs,
                "constant": self.program.constants,
            }[node.op][node.name] = v

    def _results(self) -> None:
        self._phase = FORWARD
        self.program.tangents = [None] * len(self.graph.outputs)
        for i, ref in enumerate(self.graph.outputs):
            key = ("result", i, 0, 0)
            wanted = self._chosen(key).outs[self._pick(key)][0]
            base, steps = chain_of(self.graph, ref)
            self.program.outputs.append(self._reach(base, steps, wanted, None, ref.node))

    def _gradient(self, of: int, ref: Ref, kind: str) -> int:
        base, steps = chain_of(self.graph, ref)
        return self._reach(base, steps, self._option(self.graph.nodes[of])[0][0], None, ref.node, kind=kind)

    # --- operators ------------------------------------------------------------------------------------------------

    def _pick(self, key: tuple[str, int, int, int]) -> int:
        return self.choice[self.form.index[key]]

    def _chosen(self, key: tuple[str, int, int, int]) -> Any:
        return self.form.slots[self.form.index[key]]

    def _option(self, node: Node) -> tuple[tuple[Placements, ...], tuple[Placements, ...]]:
        key = ("op", self.classes.of[node.id], 0, 0)
        slot, k = self._chosen(key), self._pick(key)
        return slot.outs[k], slot.ins[k]

    def _operator(self, node: Node, *, again: bool = False) -> None:
        outs, ins = self._option(node)
        key = ("op", self.classes.of[node.id], 0, 0)
        slot, k = self._chosen(key), self._pick(key)
        arguments: list[int] = []
        for i, (ref, wanted) in enumerate(zip(node.refs(), ins, strict=True)):
            base, steps = chain_of(self.graph, ref)
            hub = ("hub", self.classes.of[base.node], base.out, self._phase if not again else FORWARD)
            through = None
            if hub in self.form.index:
                through = self._chosen(hub).outs[self._pick(hub)][0]
            arguments.append(self._reach(base, steps, wanted, through, node.id, again=again))
            del i
        supply = iter(arguments)
        args = map_refs(node.args, lambda _: Value(next(supply)))
        kwargs = {name: map_refs(v, lambda _: Value(next(supply))) for name, v in node.kwargs.items()}
        if node.op in REGIONS:
            for i, (v, p) in enumerate(zip(write(self, node, arguments, outs), outs, strict=True)):
                self._at[Ref(node.id, i), p, self._phase] = v
            return
        op, args = localized(self.graph, node, outs, ins, self.machine.mesh.sizes, args)
        made = []
        for i, (meta, p) in enumerate(zip(node.outs, outs, strict=True)):
            if meta is None:
                made.append(-1)
                continue
            v = self._value(meta.shape, meta.dtype, p)
            self.program.values[v].stored = self.prices.stored(node.id, i)
            self._at[Ref(node.id, i), p, self._phase] = v
            made.append(v)
        seconds = float(slot.cost["compute"][k]) / slot.copies if "compute" in slot.cost else 0.0
        self._step(op, args, kwargs, tuple(made), node.id, seconds, "compute", again=again)

    # --- tensors where they are wanted ----------------------------------------------------------------------------

    def _reach(
        self,
        base: Ref,
        steps: Sequence[View],
        wanted: Placements,
        through: Placements | None,
        reader: int,
        *,
        kind: str | None = None,
        again: bool = False,
    ) -> int:
        """The value of a tensor, seen through views, in the wanted placement; by way of its hub."""
        carried = carry(steps, wanted, self.machine.mesh.sizes)
        kind = kind or (WEIGHTS if self.form.weight[base.node] else EXCHANGE)
        value = self._origin(base)
        if through is not None:
            value = self._moved(base, value, through, reader, kind, again=again)
        value = self._moved(base, value, carried.base, reader, kind, again=again)
        for view, (given, cut) in zip(steps, carried.steps, strict=True):
            value = self._view(view, value, given, again=again)
            value = self._cut(view, value, given, cut, again=again)
        return value

    def _origin(self, base: Ref) -> int:
        """The value as its operator made it; run again first where that was decided."""
        node = self.graph.nodes[base.node]
        placements = self._result_of(node)[base.out] if node.op != "tangent" else None
        if placements is None:
            i = self.graph.tangents.index(node.id)
            key = ("result", i, 0, 0)
            placements = self._chosen(key).outs[self._pick(key)][0]
        if self._phase == BACKWARD and node.phase == FORWARD:
            found = self._at.get((base, placements, BACKWARD))
            if found is not None:
                return found
            if node.id in self.recompute:
                self._operator(node, again=True)
                return self._at[base, placements, BACKWARD]
            return self._at[base, placements, FORWARD]
        return self._at[base, placements, node.phase]

    def _result_of(self, node: Node) -> Sequence[Placements]:
        return () if node.op == "tangent" else self._option(node)[0]

    def _moved(self, base: Ref, value: int, target: Placements, reader: int, kind: str, *, again: bool) -> int:
        source = self.program.values[value].placements
        if source == target:
            return value
        key = (base, target, self._phase)
        found = self._at.get(key)
        if found is not None:
            return found
        meta = self.graph.meta(base)
        sharing = self._sharing[reader] if kind == WEIGHTS else 1
        moves, seconds = self.transitions.path(source, target, meta.shape, float(meta.bytes), sharing=sharing)
        now = source
        for move, s in zip(moves, seconds, strict=True):
            now = (*now[: move.mesh_dim], move.target, *now[move.mesh_dim + 1 :])
            made = self._value(meta.shape, meta.dtype, now)
            self._step(
                f"move.{move.kind}",
                (Value(value), move.mesh_dim, move.source, move.target),
                {},
                (made,),
                reader,
                s,
                kind,
                again=again,
            )
            value = made
        self._at[key] = value
        return value

    def _view(self, view: View, value: int, given: Placements, *, again: bool) -> int:
        key = (view.node, given, value)
        found = self._viewed.get(key)
        if found is not None:
            return found
        node = self.graph.nodes[view.node]
        meta = node.outs[0]
        assert meta is not None, "views are tensors"
        args = map_refs(node.args, lambda _: Value(value))
        if node.op in SIZE_ARGUMENT:
            args = (args[0], lengths(args[1], cuts(given, self.machine.mesh.sizes)))
        made = self._value(meta.shape, meta.dtype, given, alias=value)
        self._step(node.op, args, {}, (made,), node.id, 0.0, "compute", again=again)
        self._viewed[key] = made
        return made

    def _cut(self, view: View, value: int, given: Placements, cut: Placements, *, again: bool) -> int:
        """Take this rank's piece after a view that could not carry the cut."""
        if given == cut:
            return value
        key = (-1 - view.node, cut, value)
        found = self._viewed.get(key)
        if found is not None:
            return found
        meta = self.graph.nodes[view.node].outs[0]
        assert meta is not None, "views are tensors"
        now = given
        for m, (a, b) in enumerate(zip(given, cut, strict=True)):
            if a != b:
                now = (*now[:m], b, *now[m + 1 :])
                made = self._value(meta.shape, meta.dtype, now)
                self._step("move.slice", (Value(value), m, R, b), {}, (made,), view.node, 0.0, EXCHANGE, again=again)
                value = made
        self._viewed[key] = value
        return value

    # --- the steps of a region (see ``local_regions``) --------------------------------------------------------------

    def local(self, meta: Meta, placements: Placements) -> int:
        """A value of a local shape."""
        return self._value(meta.shape, meta.dtype, placements)

    def inner_step(
        self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], outs: tuple[int, ...], node: int, seconds: float, kind: str
    ) -> None:
        self._step(op, args, kwargs, outs, node, seconds, kind, again=False)

    # --- writing --------------------------------------------------------------------------------------------------

    def _value(self, shape: Sequence[int], dtype: str, placements: Placements, alias: int | None = None) -> int:
        local = local_shape(placements, self.machine.mesh.sizes, shape)
        self.program.values.append(Info(local, dtype, placements, alias))
        return len(self.program.values) - 1

    def _step(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outs: tuple[int, ...],
        node: int,
        seconds: float,
        kind: str,
        *,
        again: bool,
    ) -> None:
        self.program.steps.append(Step(op, args, kwargs, outs, self._phase, node, seconds, kind, again))


def check_shapes(program: Program) -> None:
    """Run every kind of local operator once on meta tensors. Raises SpecError when a piece has another shape than planned."""
    from autoparallel_pytorch.local_ops import run_on_meta

    seen = set()
    for step in program.steps:
        if step.move:
            continue
        key = (step.op, _shapes(step.args, program), tuple(program.values[v].shape for v in step.outs if v >= 0))
        if key in seen:
            continue
        seen.add(key)
        shapes = run_on_meta(step, program)
        planned = tuple(program.values[v].shape if v >= 0 else None for v in step.outs)
        if shapes != planned:
            raise SpecError(f"{step.op} on pieces gives shapes {shapes} where the plan needs {planned}: its rule does not hold")


def _shapes(value: Any, program: Program) -> Any:
    if isinstance(value, Value):
        info = program.values[value.id]
        return info.shape, info.dtype
    if isinstance(value, tuple) and not isinstance(value, (Dtype, Length, Offset)):
        return tuple(_shapes(v, program) for v in value)
    return value
