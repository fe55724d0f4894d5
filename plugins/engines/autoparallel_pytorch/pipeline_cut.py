"""Cut a traced graph into pipeline stages: between repeated layers, where one set of tensors goes on and its gradients come back.

The largest repeated region gives the chain of *units*: its layers in order, with what runs before the first one and after the
last one. What follows from parameters alone, or from inputs alone (masks, rotary tables), is no part of the flow: every stage
that needs it computes it. A stage is a graph of its own: it takes the tensors that cross the cut before it as inputs whose
gradients it gives, and gives those that cross the cut after it, with their gradients as tangents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, evolve, field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.graph import BACKWARD, FORWARD, Graph, Node, Ref, map_refs
from autoparallel_pytorch.regions import Classes
from autoparallel_pytorch.views import chain_of, is_view

BOUNDARY = "boundary_"
"""Inputs of a stage that come from the stage before."""


@frozen
class Cut:
    """What crosses between two units: tensors, and the gradient of each."""

    tensors: tuple[Ref, ...]
    gradients: tuple[Ref, ...]


@define(eq=False)
class Chain:
    """A graph as a chain of units."""

    graph: Graph
    units: tuple[str, ...]
    """Names of the layers."""
    of: tuple[int, ...]
    """Per node its unit; what is not part of the flow has −1."""
    cuts: tuple[Cut, ...] = field(init=False)
    """After each unit but the last."""

    def __attrs_post_init__(self) -> None:
        self.cuts = tuple(self._cut(i) for i in range(len(self.units) - 1))

    @classmethod
    def find(cls, graph: Graph, classes: Classes) -> Chain:
        """Raises SpecError when the module has no repeated layers in a row, or tensors jump over layers."""
        regions = [(p, names) for p, names in classes.regions.items() if p.count("*") == 1]
        if not regions:
            raise SpecError("a pipeline is cut between repeated layers, and the module has none (a ModuleList of equal layers)")
        pattern = max(regions, key=lambda x: len(x[1]))[0]
        container = pattern.partition("*")[0]
        inside = {n for node in graph.nodes if (n := _child(node, container)) is not None}
        units = tuple(sorted(inside))
        number = {n: i for i, n in enumerate(units)}
        children = [_child(n, container) for n in graph.nodes]
        of = _positions(graph, [-1 if c is None else number[c] for c in children], len(units))
        _check_shared(graph, of)
        return cls(graph, tuple(f"{container}{n}" for n in units), of)

    def _cut(self, unit: int) -> Cut:
        """The tensors that units up to ``unit`` give to later ones, and what comes back."""
        there: dict[Ref, None] = {}
        back: dict[Ref, None] = {}
        for node in self.graph.nodes:
            if is_view(node) or self.of[node.id] < 0:
                continue
            for ref in node.refs():
                base, _ = chain_of(self.graph, ref)
                giver = self.graph.nodes[base.node]
                if self.of[base.node] < 0 or giver.phase != node.phase:
                    continue
                if node.phase == FORWARD and self.of[base.node] <= unit < self.of[node.id]:
                    there[base] = None
                elif node.phase == BACKWARD and self.of[node.id] <= unit < self.of[base.node]:
                    back[self._shaped(ref, there)] = None
        tensors = tuple(there)
        gradients = _matched(self.graph, tensors, tuple(back))
        if gradients is None:
            names = ", ".join(self.graph.nodes[r.node].name for r in tensors) or "nothing"
            raise SpecError(
                f"no pipeline can be cut after {self.units[unit]}: {names} goes on and {len(back)} gradients come back; "
                "every layer has to give its result to the next one"
            )
        return Cut(tensors, gradients)

    def _shaped(self, ref: Ref, tensors: Iterable[Ref]) -> Ref:
        """The gradient, seen through views as the tensor that it belongs to is shaped."""
        shapes = {self.graph.meta(t).shape for t in tensors}
        found = ref
        while self.graph.meta(found).shape not in shapes and is_view(self.graph.nodes[found.node]):
            (found,) = self.graph.nodes[found.node].refs()
        if self.graph.meta(found).shape not in shapes:
            return chain_of(self.graph, ref)[0]
        # As near to where it is made as it has that shape: two readers then share it.
        while is_view(self.graph.nodes[found.node]):
            (before,) = self.graph.nodes[found.node].refs()
            if self.graph.meta(before).shape not in shapes:
                break
            found = before
        return found

    def stage(self, first: int, last: int) -> Graph:
        """The graph of units ``first`` to ``last``. Raises SpecError when it reads what its neighbours do not give."""
        return _Stage(self, first, last).build()


def _child(node: Node, container: str) -> int | None:
    """The number of the layer that a node is in."""
    name = node.name if node.placeholder else node.module
    if not name.startswith(container):
        return None
    number = name[len(container) :].partition(".")[0].partition("/")[0]
    return int(number) if number.isdigit() else None


def _positions(graph: Graph, own: Sequence[int], n: int) -> tuple[int, ...]:
    """Units of the flow: a layer's own; before the first layer the first, after the last one the last."""
    from_parameters: list[bool] = []
    from_inputs: list[bool] = []
    of: list[int] = []
    for node in graph.nodes:
        refs = list(node.refs())
        from_parameters.append(node.op in ("parameter", "tangent") or any(from_parameters[r.node] for r in refs))
        from_inputs.append(node.op in ("input", "tangent") or any(from_inputs[r.node] for r in refs))
        if node.placeholder or not (from_parameters[-1] and from_inputs[-1]):
            of.append(-1)
            continue
        known = [of[r.node] for r in refs if of[r.node] >= 0 and graph.nodes[r.node].phase == node.phase]
        if own[node.id] >= 0:
            of.append(own[node.id])
        elif node.phase == FORWARD:
            of.append(max(known, default=0))
        else:
            of.append(min(known, default=n - 1))
    return tuple(of)


def _check_shared(graph: Graph, of: Sequence[int]) -> None:
    """Raises SpecError when layers far from each other read one parameter."""
    behind: list[frozenset[int]] = []
    units: dict[int, set[int]] = {}
    for node in graph.nodes:
        below = frozenset().union(*(behind[r.node] for r in node.refs())) if of[node.id] < 0 else frozenset()
        behind.append(below | {node.id} if node.op == "parameter" else below)
        if of[node.id] >= 0 and node.phase == FORWARD:
            for parameter in frozenset().union(*(behind[r.node] for r in node.refs())):
                units.setdefault(parameter, set()).add(of[node.id])
    for parameter, found in units.items():
        if len(found) > 1:
            raise SpecError(
                f"{graph.nodes[parameter].name} is read in layers {min(found)} and {max(found)}: stages of a pipeline do not "
                "share parameters; give each its own (untie the embedding)"
            )


def _matched(graph: Graph, tensors: Sequence[Ref], gradients: Sequence[Ref]) -> tuple[Ref, ...] | None:
    """The gradient of each tensor, by shape and type; None when they do not fit one to one."""
    left = list(gradients)
    found = []
    for t in tensors:
        same = [g for g in left if graph.meta(g) == graph.meta(t)]
        if len(same) != 1:
            return None
        found.append(same[0])
        left.remove(same[0])
    return tuple(found) if found and not left else None


@define(eq=False)
class _Stage:
    chain: Chain
    first: int
    last: int
    nodes: list[Node] = field(factory=list)
    """In order of execution, numbered anew at the end."""
    given: dict[Ref, Node] = field(factory=dict)
    """What crosses the cuts, as placeholders of this stage."""
    _seen: set[int] = field(factory=set)

    def build(self) -> Graph:
        chain, graph = self.chain, self.chain.graph
        before = chain.cuts[self.first - 1] if self.first else Cut((), ())
        after = chain.cuts[self.last] if self.last < len(chain.units) - 1 else None
        for j, t in enumerate(before.tensors):
            self.given[t] = Node(-1, "input", (), {}, (graph.meta(t),), FORWARD, "", f"{BOUNDARY}{j}")
        for j, g in enumerate(after.gradients if after else ()):
            self.given[g] = Node(-1, "tangent", (), {}, (graph.meta(g),), BACKWARD, "", f"tangent {j}")
        outputs = list(after.tensors) if after else list(graph.outputs)
        gradients: dict[str, Ref] = {
            name: ref
            for name, ref in graph.gradients.items()
            if ref is not None and self.first <= chain.of[chain_of(graph, ref)[0].node] <= self.last
        }
        own = {f"{BOUNDARY}{j}": g for j, g in enumerate(before.gradients)}
        given = {n: r for n, r in graph.input_gradients.items() if self.first == 0}
        for ref in (*outputs, *gradients.values(), *own.values(), *given.values()):
            self._reach(ref)
        originals = [t for t in graph.tangents if after is None and t is not None]
        kept = sorted(self._seen | set(originals))
        forward = [graph.nodes[i] for i in kept if graph.nodes[i].phase == FORWARD]
        backward = [graph.nodes[i] for i in kept if graph.nodes[i].phase == BACKWARD]
        inputs = [n for n in self.given.values() if n.op == "input"]
        tangents = [n for n in self.given.values() if n.op == "tangent"]
        places = [n for n in forward if n.placeholder]
        number: dict[int, int] = {}
        made: list[Node] = []
        for node in (*places, *inputs, *(n for n in forward if not n.placeholder), *tangents, *backward):
            copy = evolve(node, id=len(made))
            if node.id >= 0:
                number[node.id] = copy.id
            made.append(copy)
        at = {id(n): i for i, n in zip(range(len(places), len(places) + len(inputs)), inputs, strict=True)}
        start = len(places) + len(inputs) + sum(not n.placeholder for n in forward)
        at |= {id(n): start + i for i, n in enumerate(tangents)}

        def moved(ref: Ref) -> Ref:
            crossing = self.given.get(ref)
            return Ref(at[id(crossing)], 0) if crossing is not None else Ref(number[ref.node], ref.out)

        for node in made:
            node.args = map_refs(node.args, moved)
            node.kwargs = {k: map_refs(v, moved) for k, v in node.kwargs.items()}
        many = len(outputs) > 1
        structure = {"kind": "tuple", "children": [{"tensor": i} for i in range(len(outputs))]} if many else {"tensor": 0}
        return evolve(
            graph,
            nodes=made,
            outputs=[moved(r) for r in outputs],
            tangents=[at[id(t)] for t in tangents] if after else [None if t is None else number[t] for t in graph.tangents],
            gradients={**{n: moved(r) for n, r in gradients.items()}, **self._frozen(made)},
            input_gradients={n: moved(r) for n, r in (own | given).items()},
            structure=structure if after else graph.structure,
            inputs={n.name: n.id for n in made if n.op == "input"},
            parameters={n.name: n.id for n in made if n.op == "parameter"},
            buffers={n.name: n.id for n in made if n.op == "buffer"},
            constants={n.name: graph.constants[n.name] for n in made if n.op == "constant"},
            notes=[],
        )

    def _frozen(self, made: Sequence[Node]) -> dict[str, Ref | None]:
        """Parameters of the stage that take no gradient."""
        return {n.name: None for n in made if n.op == "parameter" and self.chain.graph.gradients.get(n.name, 0) is None}

    def _reach(self, target: Ref) -> None:
        """Everything that a tensor is made of, up to the cuts."""
        graph, of = self.chain.graph, self.chain.of
        stack = [target]
        while stack:
            ref = stack.pop()
            if ref in self.given or ref.node in self._seen:
                continue
            node = graph.nodes[ref.node]
            if of[node.id] >= 0 and not self.first <= of[node.id] <= self.last:
                where = self.chain.units[min(max(of[node.id], 0), len(self.chain.units) - 1)]
                raise SpecError(
                    f"{self.chain.units[self.first]} to {self.chain.units[self.last]} read {node.name} of {where}, which the "
                    "stages between do not pass on: no pipeline can be cut there"
                )
            self._seen.add(node.id)
            stack.extend(node.refs())
