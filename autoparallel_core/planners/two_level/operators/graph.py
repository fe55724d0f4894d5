"""A computation as einsums and element-wise operators over named axes, and its backward pass.

The builder records the forward pass; :meth:`Tape.backward` adds a gradient einsum per operand, element-wise gradients
and one update per parameter. With ``again`` the forward runs a second time in front of the backward (recompute).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import define, evolve, field, frozen

Kind = Literal["input", "parameter", "einsum", "elementwise", "update"]


@frozen
class Node:
    """One operator and its result. Axes are names; an axis of an einsum's operands that the result lacks is summed over."""

    name: str
    kind: Kind
    axes: tuple[str, ...]
    inputs: tuple[int, ...] = ()
    backward: bool = False
    whole: tuple[str, ...] = ()
    """Axes that no device may hold in parts: a norm's, a softmax's."""
    sharded_as: int | None = None
    """A node whose sharding this one takes: an update that of its parameter."""
    linear: bool = False
    """An element-wise operator whose gradient does not read its operands again (a sum, a slice, a rotation)."""
    view: bool = False
    """An element-wise operator that moves no bytes of its own."""


@frozen
class Graph:
    """Nodes in order of execution, and the size of every axis."""

    nodes: tuple[Node, ...]
    sizes: Mapping[str, float]
    """A fraction is a share that no device can divide further (dispatched tokens per expert)."""
    element_bytes: int = 4

    def bytes(self, i: int) -> float:
        """Of a node's whole result."""
        n = float(self.element_bytes)
        for a in self.nodes[i].axes:
            n *= self.sizes[a]
        return n

    def einsum_axes(self, i: int) -> tuple[str, ...]:
        """All axes of an einsum: the result's, then those summed over."""
        node = self.nodes[i]
        every = [*node.axes, *(a for j in node.inputs for a in self.nodes[j].axes)]
        return tuple(dict.fromkeys(every))

    def users(self, i: int) -> list[int]:
        return [j for j, n in enumerate(self.nodes) if i in n.inputs]


@define
class Tape:
    """Builds a graph. Methods return node numbers."""

    sizes: dict[str, float]
    nodes: list[Node] = field(factory=list)

    def _add(self, node: Node) -> int:
        if unknown := [a for a in node.axes if a not in self.sizes]:
            raise ValueError(f"{node.name}: axis {unknown[0]} has no size")
        self.nodes.append(node)
        return len(self.nodes) - 1

    def input(self, name: str, axes: str) -> int:
        """Data of a batch; ``axes`` are names separated by blanks, here and below."""
        return self._add(Node(name, "input", tuple(axes.split())))

    def parameter(self, name: str, axes: str, *, whole: str = "") -> int:
        return self._add(Node(name, "parameter", tuple(axes.split()), whole=tuple(whole.split())))

    def einsum(self, name: str, operands: Sequence[int], axes: str, *, whole: str = "") -> int:
        """A product summed over what ``axes`` lack; ``whole`` also holds for the gradients."""
        return self._add(Node(name, "einsum", tuple(axes.split()), tuple(operands), whole=tuple(whole.split())))

    def elementwise(
        self,
        name: str,
        operands: Sequence[int],
        axes: str | None = None,
        *,
        whole: str = "",
        linear: bool = False,
        view: bool = False,
    ) -> int:
        """A pass over the first operand's axes (or ``axes``); operands may lack some (broadcast) or have more (a slice)."""
        own = self.nodes[operands[0]].axes if axes is None else tuple(axes.split())
        node = Node(name, "elementwise", own, tuple(operands), whole=tuple(whole.split()), linear=linear or view, view=view)
        return self._add(node)

    def graph(self, element_bytes: int = 4) -> Graph:
        """The graph; a result that several operators use passes through a copy, so that one change of sharding serves all."""
        return self.build(element_bytes)[0]

    def build(self, element_bytes: int = 4) -> tuple[Graph, dict[int, int]]:
        """The graph, and which of its nodes holds each node's result for those who use it."""
        nodes: list[Node] = []
        at: dict[int, int] = {}
        source: dict[int, int] = {}
        for i, node in enumerate(self.nodes):
            tied = None if node.sharded_as is None else at[node.sharded_as]
            nodes.append(evolve(node, inputs=tuple(source[j] for j in node.inputs), sharded_as=tied))
            at[i] = source[i] = len(nodes) - 1
            users = sum(i in n.inputs for n in self.nodes)
            if users > 1 and node.kind in {"einsum", "elementwise"}:
                copy = Node(f"{node.name} for all", "elementwise", node.axes, (at[i],), backward=node.backward, view=True)
                nodes.append(copy)
                source[i] = len(nodes) - 1
        return Graph(tuple(nodes), dict(self.sizes), element_bytes), source

    def backward(
        self, output: int, target: int | None = None, *, again: bool = False, wanted: Sequence[int] = (), given: bool = False
    ) -> dict[int, int]:
        """Gradients of a loss of ``output`` (against ``target``), and updates of the parameters that they reach.

        ``given``: the gradient of ``output`` comes from elsewhere, as an input. Returns the nodes of that gradient
        (under ``output``) and of the gradients of the inputs ``wanted``.
        """
        forward = list(range(len(self.nodes)))
        kept = self._again(forward, output) if again else {i: i for i in forward}
        start = [] if given else [output] if target is None else [output, target]
        first = self._gradient("d loss", "input" if given else "elementwise", self.nodes[output].axes, start)
        grads: dict[int, list[int]] = {output: [first]}
        found = {output: first}
        needs = self._reach(forward, wanted)
        for i in reversed(forward):
            if i not in grads or not needs[i]:
                continue
            own = self._summed(i, grads[i])
            node = self.nodes[i]
            if i in wanted:
                found[i] = own
            if node.kind == "parameter":
                self._add(evolve(Node(f"update {node.name}", "update", node.axes, (i, own), backward=True), sharded_as=i))
                continue
            for j in node.inputs:
                if needs[j]:
                    grads.setdefault(j, []).append(self._operand_gradient(i, j, own, kept))
        return found

    def _gradient(self, name: str, kind: Kind, axes: tuple[str, ...], inputs: Sequence[int], whole: tuple[str, ...] = ()) -> int:
        return self._add(Node(name, kind, axes, tuple(inputs), backward=True, whole=whole))

    def _summed(self, i: int, parts: list[int]) -> int:
        if len(parts) == 1:
            return parts[0]
        return self._gradient(f"d {self.nodes[i].name} sum", "elementwise", self.nodes[i].axes, parts)

    def _operand_gradient(self, i: int, j: int, own: int, kept: Mapping[int, int]) -> int:
        """Gradient of operand ``j`` of node ``i``, whose own gradient is ``own``."""
        node, name = self.nodes[i], f"d {self.nodes[j].name} by {self.nodes[i].name}"
        if node.kind == "einsum":
            others = [kept[k] for k in node.inputs if k != j]
            return self._gradient(name, "einsum", self.nodes[j].axes, [own, *others], node.whole)
        axes = self.nodes[j].axes
        if set(axes) < set(node.axes):  # the gradient of a broadcast operand is a sum
            return self._gradient(name, "einsum", axes, [own])
        inputs = (own,) if node.linear else (own, kept[j])
        return self._add(Node(name, "elementwise", axes, inputs, backward=True, whole=node.whole, view=node.view))

    def _reach(self, forward: list[int], wanted: Sequence[int]) -> dict[int, bool]:
        """Which nodes lie behind a parameter or an input whose gradient is wanted."""
        needs: dict[int, bool] = {}
        for i in forward:
            node = self.nodes[i]
            needs[i] = node.kind == "parameter" or i in wanted or any(needs[j] for j in node.inputs)
        return needs

    def _again(self, forward: list[int], output: int) -> dict[int, int]:
        """The forward once more; parameters and inputs are the same, and the last result is not needed again."""
        twin: dict[int, int] = {}
        for i in forward:
            node = self.nodes[i]
            if node.kind in {"input", "parameter"} or i == output:
                twin[i] = i
            else:
                inputs = tuple(twin[j] for j in node.inputs)
                twin[i] = self._add(evolve(node, name=f"{node.name} again", inputs=inputs, backward=True))
        return twin
