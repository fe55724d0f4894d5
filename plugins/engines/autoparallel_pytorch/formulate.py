"""The planning problem as arrays: options, times and bytes per node, tables per edge.

Nodes of the problem (*slots*) are classes of operators (``regions``), of parameters, inputs and results, and *hubs*: a
tensor that several operators of one phase read gets a slot of its own, so that one redistribution serves all of them.
Views are not slots; edges carry placements through them (``views``).

Times have four kinds, summed apart because they overlap differently (``objective``): ``compute`` of operators,
``exchange`` of activations, ``weights`` (gathers of parameters and reductions of their gradients, which run beside
computation) and ``update`` (the optimizer step).
Axis legend: K options of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from autoparallel_core.errors import SpecError
from autoparallel_core.solve.couplings import Coupling
from autoparallel_pytorch.graph import BACKWARD, FORWARD, Graph, Meta, Node, Ref
from autoparallel_pytorch.layer_numbers import Layers
from autoparallel_pytorch.local_regions import REGIONS
from autoparallel_pytorch.machine import Machine
from autoparallel_pytorch.own_rules import Rule
from autoparallel_pytorch.placement import PMAX, PMIN, P, Placements, R, which_fit
from autoparallel_pytorch.prices import Option, Prices
from autoparallel_pytorch.region_program import region_rules, region_seconds
from autoparallel_pytorch.regions import Classes
from autoparallel_pytorch.rules import Rules
from autoparallel_pytorch.transitions import Transitions
from autoparallel_pytorch.views import Carried, Step, carry, chain_of, is_view

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
COMPUTE, EXCHANGE, WEIGHTS, UPDATE = "compute", "exchange", "weights", "update"
KINDS = (COMPUTE, EXCHANGE, WEIGHTS, UPDATE)


@define(eq=False)
class Slot:
    """One node of the problem."""

    key: tuple[str, int, int, int]
    """(``op`` | ``hub`` | ``result``, class or output, output, phase)."""
    node: int
    """Its first operator, parameter, input; for hubs the operator whose result it holds."""
    rules: tuple[Rule, ...]
    """Of one mesh dimension."""
    picks: tuple[tuple[int, ...], ...]
    """Per option the rule taken on each mesh dimension."""
    outs: tuple[tuple[Placements, ...], ...]
    """[K][outputs]."""
    ins: tuple[tuple[Placements, ...], ...]
    """[K][tensor inputs]."""
    copies: int
    cost: dict[str, Array] = field(factory=dict)
    """Seconds of all its copies by kind."""
    source: str = ""
    """Who gave the rules."""


@define(eq=False)
class Formulation:
    """The problem, and how to find a slot's part in it."""

    slots: list[Slot]
    index: dict[tuple[str, int, int, int], int]
    edges: dict[tuple[int, int, str], Coupling]
    """(giving slot, reading slot, kind) → seconds of all copies, [K_u, K_v]."""
    inputs: dict[tuple[int, int], tuple[int, int]]
    """(reader node, tensor input) → (slot read, output there): the hub, or the operator itself."""
    weight: list[bool] = field(factory=list)
    """Per graph node, whether it follows from parameters alone."""

    def seconds(self, choice: Sequence[int]) -> dict[str, float]:
        """Time by kind of a choice."""
        total = dict.fromkeys(KINDS, 0.0)
        for slot, k in zip(self.slots, choice, strict=True):
            for kind, c in slot.cost.items():
                total[kind] += float(c[k])
        for (u, v, kind), t in self.edges.items():
            total[kind] += float(t[choice[u], choice[v]])
        return total


@frozen(eq=False)
class Settings:
    """What shapes the problem beyond graph and machine."""

    optimizer_bytes: float
    """Per parameter, beside the parameter and its gradient."""
    update_bytes: float
    """Bytes that one step of the optimizer moves per parameter."""
    pins: Mapping[str, Placements] = field(factory=dict)
    """Parameter, input, output or operator name → placement of it (of its first result)."""
    replicate_results: bool = False
    sharing: bool = True
    """Whether weight traffic of a layer goes together, and shares latencies."""


Narrow = Callable[[tuple[str, int, int, int], int], Sequence[int] | None]
"""(slot key, mesh dimension) → the rule indices allowed there, None for all."""


def formulate(
    graph: Graph, classes: Classes, rules: Rules, prices: Prices, transitions: Transitions, settings: Settings,
    narrow: Narrow | None = None,
) -> Formulation:  # fmt: skip
    """The problem for one mesh, over all rules or those that ``narrow`` leaves.

    Raises:
        SpecError: a pin names nothing, or a placement that no rule allows.
    """
    return _Builder(graph, classes, rules, prices, transitions, settings, narrow).build()


_EdgeKey = tuple[int, int, int, int, tuple[object, ...], str]
"""Giver, its output, reader, its input, views, kind."""


@define(eq=False)
class _EdgeCount:
    steps: tuple[Step, ...]
    meta: Meta
    copies: int = 0


@define(eq=False)
class _Builder:
    graph: Graph
    classes: Classes
    rules: Rules
    prices: Prices
    transitions: Transitions
    settings: Settings
    narrow: Narrow | None
    form: Formulation = field(init=False)
    _carried: dict[tuple[tuple[object, ...], Placements], Carried] = field(factory=dict)
    _sharing: list[int] = field(factory=list)
    _cores: dict[tuple[object, ...], Array] = field(factory=dict)
    """Tables between distinct placements: tensors of one shape with the same options share them."""
    _weight: list[bool] = field(factory=list)
    _constant: list[bool] = field(factory=list)

    @property
    def machine(self) -> Machine:
        return self.prices.machine

    def build(self) -> Formulation:
        self.form = Formulation([], {}, {}, {})
        self._sharing = Layers.find(self.graph, self.classes).weights(self.graph)
        self._derive()
        readers = self._readers()
        for c, members in enumerate(self.classes.members):
            node = self.graph.nodes[members[0]]
            if not is_view(node) and node.op != "tangent":
                self._operator(c, node, len(members))
        self._results()
        self._hubs(readers)
        self._connect(readers)
        self._gradients()
        self.form.weight = self._weight
        return self.form

    def _derive(self) -> None:
        """Which nodes follow from parameters alone (they may be computed ahead), and which from nothing given at all."""
        for node in self.graph.nodes:
            refs = list(node.refs())
            constant = not refs and node.op not in ("parameter", "input", "tangent")
            self._constant.append(constant or (bool(refs) and all(self._constant[r.node] for r in refs)))
            weight = node.op == "parameter" or (bool(refs) and all(self._weight[r.node] or self._constant[r.node] for r in refs))
            self._weight.append(weight and not self._constant[-1])

    # --- slots ----------------------------------------------------------------------------------------------------

    def _operator(self, c: int, node: Node, copies: int) -> None:
        key = ("op", c, 0, 0)
        if node.placeholder:
            shape = node.outs[0].shape if node.outs[0] is not None else ()
            free = node.op in ("parameter", "input")
            rules: tuple[Rule, ...] = tuple(((p,), ()) for p in (R, *(range(len(shape)) if free else ())))
            source = node.op
        elif self._constant[node.id]:
            rules, source = self.rules.of(self.graph, node).rules[:1], "constant"
        elif node.op in REGIONS:
            rules, source = (), "local_map"
        else:
            found = self.rules.of(self.graph, node)
            rules = tuple(r for r in found.rules if not any(p in (PMAX, PMIN) for p in r[1]))
            source = found.source
        metas = [self.graph.meta(r) for r in node.refs()]
        fixed = None
        if node.op in REGIONS:
            rules, fixed = region_rules(self.graph, node, self.machine.mesh)
        slot = self._slot(key, node.id, rules, node.outs, metas, copies, source, self._pins(node, c), fixed)
        if node.op in REGIONS:
            slot.cost[COMPUTE], slot.cost[EXCHANGE] = region_seconds(self.graph, node, self.machine, copies)
            return
        if node.op == "parameter":
            slot.cost[UPDATE] = self._update(node, slot, copies)
        elif not node.placeholder:
            options: list[Option] = list(zip(slot.outs, slot.ins, strict=True))
            slot.cost[COMPUTE] = copies * self.prices.seconds(node, options)

    def _update(self, node: Node, slot: Slot, copies: int) -> Array:
        meta = node.outs[0]
        if meta is None or self.graph.gradients.get(node.name) is None:
            return np.zeros(len(slot.picks))
        cut = np.array([prod(n for p, n in zip(o[0], self.machine.mesh.sizes, strict=True) if p >= 0) for o in slot.outs])
        return copies * self.machine.traffic_s(meta.elements * self.settings.update_bytes / cut)

    def _slot(
        self, key: tuple[str, int, int, int], node: int, rules: tuple[Rule, ...], outs: Sequence[Meta | None],
        ins: Sequence[Meta], copies: int, source: str, pin: Placements | None,
        fixed: tuple[int, ...] | None = None,
    ) -> Slot:  # fmt: skip
        sizes = self.machine.mesh.sizes
        allowed = []
        for m in range(len(sizes)):
            some = self.narrow(key, m) if self.narrow is not None else None
            allowed.append(range(len(rules)) if some is None else [i for i in some if i < len(rules)])
        wanted = list(product(*allowed)) if fixed is None else [fixed]
        grid = np.array(wanted, dtype=np.int64).reshape(len(wanted), len(sizes))  # [K, mesh dimensions]
        fitting = np.ones(len(grid), dtype=bool)
        tensors = []
        for side, metas in ((0, outs), (1, ins)):
            codes = np.array([r[side] for r in rules], dtype=np.int64).reshape(len(rules), len(metas))
            for j, meta in enumerate(metas):
                tensors.append(codes[:, j][grid])
                if meta is not None:
                    fitting &= which_fit(tensors[-1], sizes, meta.shape)
        rows = [[tuple(p) for p in t[fitting].tolist()] for t in tensors]
        picks = [tuple(p) for p in grid[fitting].tolist()]
        out_rows = list(zip(*rows[: len(outs)], strict=True)) if outs else [()] * len(picks)
        in_rows = list(zip(*rows[len(outs) :], strict=True)) if ins else [()] * len(picks)
        if pin is not None:
            keep = [k for k, o in enumerate(out_rows) if o and o[0] == pin]
            if not keep:
                raise SpecError(self._bad_pin(key, node, pin, {o[0] for o in out_rows if o}))
            picks, out_rows, in_rows = [picks[k] for k in keep], [out_rows[k] for k in keep], [in_rows[k] for k in keep]
        slot = Slot(key, node, rules, tuple(picks), tuple(out_rows), tuple(in_rows), copies, source=source)
        self.form.index[key] = len(self.form.slots)
        self.form.slots.append(slot)
        return slot

    def _bad_pin(self, key: tuple[str, int, int, int], node: int, pin: Placements, legal: Iterable[Placements]) -> str:
        from autoparallel_pytorch.placement import text

        name = f"result {key[1]}" if key[0] == "result" else self.graph.nodes[node].name
        return (
            f"pin {name}={text(pin)}: not among its placements on mesh {self.machine.mesh}: {'; '.join(sorted(map(text, legal)))}"
        )

    def _pins(self, node: Node, c: int) -> Placements | None:
        """The pin of any member: members of a class go together."""
        found = {self.settings.pins[n] for m in self.classes.members[c] if (n := self.graph.nodes[m].name) in self.settings.pins}
        if len(found) > 1:
            raise SpecError(f"{node.name} and its repetitions are planned as one, and are pinned to different placements")
        return next(iter(found), None)

    def _results(self) -> None:
        """What the module returns: whole sums, scalars replicated; the gradient that comes back is placed alike."""
        for i, (ref, tangent) in enumerate(zip(self.graph.outputs, self.graph.tangents, strict=True)):
            meta = self.graph.meta(ref)
            free = bool(meta.shape) and not self.settings.replicate_results
            rules: tuple[Rule, ...] = tuple(((p,), ()) for p in (R, *(range(len(meta.shape)) if free else ())))
            node = ref.node if tangent is None else tangent
            pin = self.settings.pins.get(f"output {i}")
            self._slot(("result", i, 0, 0), node, rules, (meta,), (), 1, "result", pin)

    # --- who reads what -------------------------------------------------------------------------------------------

    def _readers(self) -> dict[Ref, list[tuple[Node, int, tuple[Step, ...]]]]:
        """Base tensor → its readers through views: (reader, tensor input, views)."""
        found: dict[Ref, list[tuple[Node, int, tuple[Step, ...]]]] = {}
        for node in self.graph.nodes:
            if is_view(node):
                continue
            for i, ref in enumerate(node.refs()):
                base, steps = chain_of(self.graph, ref)
                found.setdefault(base, []).append((node, i, steps))
        return found

    def _source(self, ref: Ref) -> tuple[int, int]:
        """The slot that makes a base tensor, and which of its outputs."""
        node = self.graph.nodes[ref.node]
        if node.op == "tangent":
            return self.form.index["result", self.graph.tangents.index(node.id), 0, 0], 0
        return self.form.index["op", self.classes.of[ref.node], 0, 0], ref.out

    def _hubs(self, readers: Mapping[Ref, Sequence[tuple[Node, int, tuple[Step, ...]]]]) -> None:
        """One slot per tensor and phase that more than one operator reads."""
        for ref, reads in readers.items():
            base = self.graph.nodes[ref.node]
            meta = self.graph.meta(ref)
            source, out = self._source(ref)
            for phase in (FORWARD, BACKWARD):
                if sum(n.phase == phase for n, _, _ in reads) < 2:
                    continue
                key = ("hub", self.classes.of[ref.node], out, phase)
                if key in self.form.index:
                    continue
                partial = any(p in (P, PMAX, PMIN) for o in self.form.slots[source].outs for p in o[out])
                codes = (R, *range(len(meta.shape)), *((P,) if partial and meta.floating else ()))
                rules: tuple[Rule, ...] = tuple(((p,), ()) for p in codes)
                copies = len(self.classes.members[self.classes.of[base.id]])
                self._slot(key, ref.node, rules, (meta,), (), copies, "hub", None)

    # --- edges ----------------------------------------------------------------------------------------------------

    def _connect(self, readers: Mapping[Ref, Sequence[tuple[Node, int, tuple[Step, ...]]]]) -> None:
        counts: dict[_EdgeKey, _EdgeCount] = {}
        for ref, reads in readers.items():
            source, out = self._source(ref)
            kind = WEIGHTS if self._weight[ref.node] else EXCHANGE
            hubbed = set()
            for node, i, steps in reads:
                hub = self.form.index.get(("hub", self.classes.of[ref.node], out, node.phase))
                reader = self.form.index["op", self.classes.of[node.id], 0, 0]
                at, at_out = (source, out) if hub is None else (hub, 0)
                self.form.inputs[node.id, i] = (at, at_out)
                self._count(counts, at, at_out, reader, i, steps, kind, self.graph.meta(ref))
                if hub is not None and node.phase not in hubbed:
                    hubbed.add(node.phase)
                    self._count(counts, source, out, hub, 0, (), kind, self.graph.meta(ref))
        for i, ref in enumerate(self.graph.outputs):
            base, steps = chain_of(self.graph, ref)
            source, out = self._source(base)
            self._count(counts, source, out, self.form.index["result", i, 0, 0], 0, steps, EXCHANGE, self.graph.meta(base))
        for (u, o, v, i, _, kind), found in counts.items():
            self._edge(u, o, v, i, found.steps, kind, found.meta, found.copies)

    @staticmethod
    def _count(
        counts: dict[_EdgeKey, _EdgeCount], u: int, o: int, v: int, i: int,
        steps: tuple[Step, ...], kind: str, meta: Meta,
    ) -> None:  # fmt: skip
        counts.setdefault((u, o, v, i, _chain_key(steps), kind), _EdgeCount(steps, meta)).copies += 1

    def _gradients(self) -> None:
        """A parameter's gradient ends where the parameter lies, an input's where the input does."""
        counts: dict[_EdgeKey, _EdgeCount] = {}
        for name, ref in self.graph.gradients.items():
            if ref is not None:
                base, steps = chain_of(self.graph, ref)
                source, out = self._source(base)
                parameter = self.form.index["op", self.classes.of[self.graph.parameters[name]], 0, 0]
                self._count(counts, source, out, parameter, -1, steps, WEIGHTS, self.graph.meta(base))
        for name, ref in self.graph.input_gradients.items():
            base, steps = chain_of(self.graph, ref)
            source, out = self._source(base)
            given = self.form.index["op", self.classes.of[self.graph.inputs[name]], 0, 0]
            self._count(counts, source, out, given, -1, steps, EXCHANGE, self.graph.meta(base))
        for (u, o, v, _, _, kind), found in counts.items():
            self._edge(u, o, v, -1, found.steps, kind, found.meta, found.copies)

    def _edge(self, u: int, o: int, v: int, i: int, steps: tuple[Step, ...], kind: str, meta: Meta, count: int) -> None:
        giver, reader = self.form.slots[u], self.form.slots[v]
        wanted = [x[i] for x in reader.ins] if reader.key[0] == "op" and i >= 0 else [x[0] for x in reader.outs]
        given, give_at = _distinct([x[o] for x in giver.outs])
        asked, ask_at = _distinct([self._carry(steps, q).base for q in wanted])
        # Weight traffic of a layer goes in buckets (``bucket``); the operator that reads or gives it says which layer.
        sharing = self._sharing[giver.node if i < 0 else reader.node] if kind == WEIGHTS and self.settings.sharing else 1
        key = (tuple(given), tuple(asked), meta.shape, meta.bytes, sharing)
        core = self._cores.get(key)
        if core is None:
            core = self.transitions.table(given, asked, meta.shape, float(meta.bytes), sharing=sharing)
            self._cores[key] = core
        table = Coupling(core, give_at, ask_at).scaled(float(count))
        if u == v:
            giver.cost[kind] = giver.cost.get(kind, 0.0) + table[np.arange(len(give_at)), np.arange(len(ask_at))]
            return
        before = self.form.edges.get((u, v, kind))
        self.form.edges[u, v, kind] = table if before is None else before.plus(table)

    def _carry(self, steps: tuple[Step, ...], wanted: Placements) -> Carried:
        key = (_chain_key(steps), wanted)
        found = self._carried.get(key)
        if found is None:
            found = self._carried[key] = carry(steps, wanted, self.machine.mesh.sizes)
        return found


def _chain_key(steps: Sequence[Step]) -> tuple[object, ...]:
    return tuple((s.source, s.before, s.after) for s in steps)


def _distinct(values: Sequence[Placements]) -> tuple[list[Placements], IntArray]:
    number: dict[Placements, int] = {}
    at = np.array([number.setdefault(v, len(number)) for v in values], dtype=np.int64)
    return list(number), at
