"""A layer of a model as a graph of einsums: the operators of its blocks, with the tensors between them made explicit.

Operators say which axes they read and write, not whose tensors; the usual order of a block settles that: an operator
reads the newest tensors with its axes, a residual adds the newest branch to the stream. Tensors of a micro-batch have the
axes ``b`` (sequences) and ``s`` (positions) in front. Query heads are ``kv`` groups of ``group`` heads, so that queries
and the keys they need can be cut alike. Projections that share their input are one einsum with an axis of parts, as
engines fuse them. Tokens sent to experts keep their position and have an axis of experts, of which each token fills a
share. The attention is one einsum whose softmax axis stays whole.

Norms' and biases' vectors, and what a mixer does beside its projections and its scan, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.planners.two_level.operators.graph import Graph, Tape
from autoparallel_core.spec.arch import Layer, ModelArch
from autoparallel_core.spec.op import (
    Attention,
    Axis,
    Bare,
    Elementwise,
    ExpertGemm,
    Gemm,
    Loss,
    Op,
    Scan,
    TokenExchange,
)

ELEMENT_BYTES = 2
TOKENS = ("b", "s")


@frozen
class LayerGraph:
    """One layer, forward and backward. Nodes of the residual stream at its two ends, and of the stream's gradient there."""

    graph: Graph
    enters: int
    leaves: int | None
    """None: nothing follows."""
    gradient_enters: int | None
    """Arrives from the layers behind."""
    gradient_leaves: int


@define
class _Tensor:
    node: int
    axes: tuple[Axis, ...]
    """Without the tokens' axes; several are the parts of a fused projection."""
    routed: bool = False


def layer_graph(layer: Layer, arch: ModelArch, sequences: int, seq_len: int) -> LayerGraph:
    """Lower one decoder layer for a micro-batch of ``sequences`` over all devices.

    Raises:
        SpecError: the layer has an operator whose tensors cannot be told.
    """
    low = _Lowering(layer.ops, arch.hidden_size, sequences, seq_len)
    for op in layer.ops:
        low.op(op)
    return low.finished()


def head_graph(arch: ModelArch, sequences: int, seq_len: int) -> LayerGraph:
    """The final norm, the vocabulary projection and the loss; nothing leaves but the gradient."""
    low = _Lowering(arch.epilogue.ops, arch.hidden_size, sequences, seq_len)
    for op in arch.epilogue.ops:
        low.op(op)
    found = low.tape.backward(low.newest, wanted=(low.enters,))
    graph, at = low.tape.build(ELEMENT_BYTES)
    return LayerGraph(graph, at[low.enters], None, None, at[found[low.enters]])


@define
class _Lowering:
    """The tape and the tensors written so far."""

    ops: Sequence[Op]
    hidden: int
    sequences: int
    seq_len: int
    tape: Tape = field(init=False)
    enters: int = field(init=False)
    stream: int = field(init=False)
    """The residual stream."""
    newest: int = field(init=False)
    """The tensor written last."""
    normed: int = field(init=False)
    """What projections of the stream read."""
    branches: list[int] = field(factory=list)
    """Results on their way back to the stream."""
    tensors: list[_Tensor] = field(factory=list)
    probabilities: int | None = None

    def __attrs_post_init__(self) -> None:
        self.tape = Tape({"b": self.sequences, "s": self.seq_len, "t": self.seq_len, "hidden": self.hidden})
        self.enters = self.tape.input("x", "b s hidden")
        self.stream = self.newest = self.normed = self.enters

    # --- axes ---------------------------------------------------------------------------------------------------

    def _groups(self, axis: Axis) -> int:
        """Key and value heads that the query heads of ``axis`` are grouped by."""
        for op in self.ops:
            if isinstance(op, Attention) and op.heads.units == axis.units and axis.units % op.kv_heads.units == 0:
                return op.kv_heads.units
            if isinstance(op, Scan) and op.heads.units == axis.units and axis.units % op.key_heads.units == 0:
                return op.key_heads.units
        return axis.units

    def names(self, axis: Axis) -> tuple[str, ...]:
        """Graph axes of an operator's axis, their sizes recorded."""
        if axis.name == "hidden":  # or a narrower one that experts work on
            return (self._named("hidden", axis.units),)
        if axis.name in {"heads", "kv_heads"}:
            kv = self._groups(axis)
            out = [self._named("kv", kv)]
            out += [self._named("group", axis.units // kv)] if axis.units > kv else []
        else:
            out = [self._named(axis.name, axis.units)]
        return (*out, *([self._named("width", axis.width)] if axis.width > 1 else []))

    def _named(self, name: str, size: float) -> str:
        full = f"{name}{size:g}" if name in {"width", "part", "share"} or self.tape.sizes.get(name, size) != size else name
        self.tape.sizes[full] = size
        return full

    # --- tensors ------------------------------------------------------------------------------------------------

    def write(self, node: int, axes: Sequence[Axis], *, routed: bool = False) -> None:
        self.tensors.append(_Tensor(node, tuple(axes), routed))
        self.newest = node

    def read(self, axis: Axis, *, routed: bool = False) -> int:
        """The newest tensor of exactly this axis, a part of a fused one, or the newest of its name (cut to size)."""
        if self._of_stream(axis) and not routed:
            return self.normed
        fitting = [t for t in reversed(self.tensors) if t.routed == routed]
        for t in fitting:
            if t.axes == (axis,):
                return t.node
        for t in fitting:
            if any(a.name == axis.name for a in t.axes):
                node = self.tape.elementwise(
                    f"part of {self.tape.nodes[t.node].name}", [t.node], self._axes(axis, routed), view=True
                )
                self.write(node, (axis,), routed=routed)
                return node
        raise SpecError(
            f"an operator reads an axis {axis.name} of {axis.size:,} that nothing before it in the layer makes, so the layer "
            "has no graph of einsums here; --granularity layer prices layers as a whole"
        )

    def _axes(self, axis: Axis, routed: bool = False) -> str:
        return " ".join((*TOKENS, *(("experts", self._share) if routed else ()), *self.names(axis)))

    @property
    def _share(self) -> str:
        """The axis that makes tokens times experts the tokens sent."""
        op = next(o for o in self.ops if isinstance(o, ExpertGemm))
        return self._named("share", op.top_k / op.experts.units)

    # --- operators ----------------------------------------------------------------------------------------------

    def op(self, op: Op) -> None:
        """Add one operator."""
        if isinstance(op, Gemm):
            self._gemm(op)
        elif isinstance(op, ExpertGemm):
            self._experts(op)
        elif isinstance(op, Attention):
            self._attention(op)
        elif isinstance(op, Scan):
            self._scan(op)
        elif isinstance(op, TokenExchange):
            if op.direction == "combine":
                self._combine(op.width)
        elif isinstance(op, Elementwise):
            self._elementwise(op)
        elif not isinstance(op, Bare | Loss):
            raise SpecError(f"operator {op.name} ({op.kind}) has no einsum here; --granularity layer prices it as a whole")

    def _gemm(self, op: Gemm) -> None:
        source = self.read(op.k)
        k = self.names(op.k)
        parts, fused = self._fused(op)
        for name, axes, extra in parts:
            whole = extra if extra.startswith("part") else ""
            weight = self.tape.parameter(f"{name} weight", " ".join((*k, *axes)), whole=whole)
            node = self.tape.einsum(name, [source, weight], " ".join((*TOKENS, *axes)), whole=whole)
            if op.name == "router":
                node = self.tape.elementwise("top k", [node], whole=axes[0])
                self.probabilities = node
            own = fused if extra else (op.n[[p[0] for p in parts].index(name)],)
            self.write(node, own)
            if self._of_stream(own[0]):
                self.branches.append(node)

    def _fused(self, op: Gemm) -> tuple[list[tuple[str, tuple[str, ...], str]], tuple[Axis, ...]]:
        """(name, axes, axis of parts) of the einsums of a projection: one where its parts can be cut alike."""
        if op.name == "router":
            return [(op.name, (self._named("experts", op.n[0].units),), "")], ()
        if len(op.n) == 1:
            return [(op.name, self.names(op.n[0]), "")], ()
        heads = all(a.name in {"heads", "kv_heads"} for a in op.n)
        units = min(self._groups(a) for a in op.n) if heads else op.n[0].units
        alike = heads or all(a.name == op.n[0].name for a in op.n)
        total = sum(a.size for a in op.n)
        name = "kv" if heads else op.n[0].name
        if alike and total % units == 0 and all(a.units % units == 0 for a in op.n):
            part = self._named("part", total // units)
            return [(op.name, (self._named(name, units), part), part)], op.n
        if alike:
            return [(op.name, (self._named(name, total),), "all")], op.n
        return [(f"{op.name} {i}", self.names(a), "") for i, a in enumerate(op.n)], ()

    def _experts(self, op: ExpertGemm) -> None:
        source = self.read(op.k, routed=True)
        part = (self._named("part", len(op.n)),) if len(op.n) > 1 else ()
        n = (*self.names(op.n[0]), *part)
        whole = " ".join(part)
        weight = self.tape.parameter(f"{op.name} weight", " ".join(("experts", *self.names(op.k), *n)), whole=whole)
        axes = " ".join((*TOKENS, "experts", self._share, *n))
        self.write(self.tape.einsum(op.name, [source, weight], axes, whole=whole), op.n, routed=True)

    def _dispatch(self, width: Axis) -> None:
        self._named("experts", next(o.experts.units for o in self.ops if isinstance(o, ExpertGemm)))
        axes = self._axes(width, routed=True)
        node = self.tape.elementwise("dispatch", [self.read(width)], axes, whole=self._share, linear=True)
        self.write(node, (width,), routed=True)

    def _combine(self, width: Axis) -> None:
        operands = [self.read(width, routed=True), *([self.probabilities] if self.probabilities is not None else [])]
        node = self.tape.einsum("combine", operands, self._axes(width), whole=self._share)
        if self._of_stream(width):
            self.branches.append(node)
        else:
            self.write(node, (width,))

    def _attention(self, op: Attention) -> None:
        q = self.read(op.heads)
        keys = [Axis("kv_heads", op.kv_heads.units, op.kv_heads.width)]
        if any(a.name == "kv_heads" for t in self.tensors for a in t.axes):
            keys.append(Axis("kv_heads", op.kv_heads.units, op.v_width))
        else:  # keys and values in one, made of a latent
            keys = [next(t.axes[0] for t in reversed(self.tensors) if t.axes[0].name == "heads" and t.axes != (op.heads,))]
        seen = []
        for i, axis in enumerate(keys):
            node = self._values(axis) if i else self.read(axis)
            axes = " ".join(("b", "t", *(a for a in self.tape.nodes[node].axes if a not in TOKENS)))
            seen.append(self.tape.elementwise(("keys", "values")[i], [node], axes, view=True))
        out = Axis("heads", op.heads.units, op.v_width)
        widths = {a for n in (q, *seen) for a in self.tape.nodes[n].axes if a.startswith("width")}
        widths |= {a for a in self.names(out) if a.startswith("width")}
        whole = " ".join(sorted({"t", *widths}))
        self.write(self.tape.einsum(op.name, [q, *seen], self._axes(out), whole=whole), (out,))

    def _values(self, axis: Axis) -> int:
        """The values' part of the projection that also made the keys."""
        for t in reversed(self.tensors):
            if len(t.axes) > 1 and axis in t.axes:
                return self.tape.elementwise("part for values", [t.node], self._axes(axis), view=True)
        return self.read(axis)

    def _scan(self, op: Scan) -> None:
        operands = list(dict.fromkeys(self.read(a) for a in (op.key_heads, op.heads)))
        widths = {a for n in operands for a in self.tape.nodes[n].axes if a.startswith(("width", "part"))}
        widths |= {a for a in self.names(op.heads) if a.startswith("width")}
        node = self.tape.einsum(op.name, operands, self._axes(op.heads), whole=" ".join(sorted({"s", *widths})))
        self.write(node, (op.heads,))

    def _elementwise(self, op: Elementwise) -> None:
        if op.role == "residual":
            self._residual(op)
        elif op.role == "permute":
            if op.name == "permute":
                self._dispatch(op.writes[0])
        elif op.role == "rotary":
            for axis in dict.fromkeys(op.writes):
                self.write(self.tape.elementwise(op.name, [self.read(axis)], linear=True), (axis,))
        elif op.role == "norm":
            self._norm(op)
        else:
            routed = op.top_k > 0
            operands = list(dict.fromkeys(self._operand(op.reads, a, routed) for a in op.reads))
            (axis,) = op.writes
            self.write(self.tape.elementwise(op.name, operands, self._axes(axis, routed)), (axis,), routed=routed)

    def _of_stream(self, axis: Axis) -> bool:
        return axis.name == "hidden" and axis.units == self.hidden

    def _residual(self, op: Elementwise) -> None:
        """Two branches are added to each other first; one goes back to the stream."""
        if len(self.branches) > 1:
            self.branches[-2:] = [self.tape.elementwise(op.name, self.branches[-2:], linear=True)]
            return
        self.stream = self.normed = self.tape.elementwise(op.name, [*self.branches, self.stream], linear=True)
        self.branches = []

    def _norm(self, op: Elementwise) -> None:
        """Of the stream in front of a branch, of a branch at its end, or inside."""
        (axis,) = op.writes
        if not self._of_stream(axis):
            whole = self.names(axis)[-1]
            self.write(self.tape.elementwise(op.name, [self.read(axis)], whole=whole), (axis,))
        elif self.branches:
            self.branches[-1] = self.tape.elementwise(op.name, [self.branches[-1]], whole="hidden")
        else:
            self.normed = self.tape.elementwise(op.name, [self.stream], whole="hidden")

    def _operand(self, reads: Sequence[Axis], axis: Axis, routed: bool) -> int:
        """The fused tensor of all that is read, else the newest of the axis."""
        if len(reads) > 1:
            for t in reversed(self.tensors):
                if t.routed == routed and t.axes == tuple(reads):
                    return t.node
        return self.read(axis, routed=routed)

    # --- the end ------------------------------------------------------------------------------------------------

    def finished(self) -> LayerGraph:
        """With the backward pass of a gradient that arrives from behind."""
        for branch in self.branches:  # of two, one residual adds only the sum
            self.stream = self.tape.elementwise("residual", [branch, self.stream], linear=True)
        found = self.tape.backward(self.stream, wanted=(self.enters,), given=True)
        graph, at = self.tape.build(ELEMENT_BYTES)
        return LayerGraph(graph, at[self.enters], at[self.stream], at[found[self.stream]], at[found[self.enters]])
