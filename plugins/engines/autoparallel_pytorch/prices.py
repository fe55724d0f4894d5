"""Seconds of one operator on its local shapes, for all of its options at once.

Matrix products and attention come from the core's kernel models; everything else moves bytes. Element-wise operators,
reductions and views that feed each other run as one kernel (as torch.compile fuses them), so such an operator pays for what
it reads from elsewhere and for what it writes for others or keeps for the backward.
Axis legend: K options of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from autoparallel_core.ops.kernels import GemmModel
from autoparallel_pytorch.graph import DTYPE_BYTES, Graph, Meta, Node, Ref
from autoparallel_pytorch.machine import Machine
from autoparallel_pytorch.placement import Placements, cuts, shards
from autoparallel_pytorch.views import is_view

Array = NDArray[np.float64]
Option = tuple[tuple[Placements, ...], tuple[Placements, ...]]
"""Placements of the outputs and of the tensor inputs, each over all mesh dimensions."""

_UNFUSED = frozenset({
    "aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default", "aten.embedding.default",
    "aten.embedding_dense_backward.default", "aten.gather.default", "aten.topk.default", "aten.sort.default",
    "aten.index.Tensor", "aten.index_put.default", "aten.convolution.default", "aten.convolution_backward.default",
    "aten.cumsum.default", "aten.scatter_add.default", "autoparallel.attention", "autoparallel.attention_backward",
})  # fmt: skip
"""Kernels of their own; every other aten operator is taken to be fused with its neighbours."""


def fusable(node: Node) -> bool:
    return not node.placeholder and node.op.startswith("aten.") and node.op not in _UNFUSED


@define(eq=False)
class Prices:
    """Operator times on one machine."""

    machine: Machine
    graph: Graph
    custom: Mapping[str, Callable[..., float]] = field(factory=dict)
    """FLOPs of operators that a user registered: ``flops(local input shapes) → float``."""
    _reads: dict[int, tuple[bool, ...]] = field(factory=dict)
    _writes: dict[int, tuple[bool, ...]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        readers: dict[Ref, list[Node]] = {}
        results = {
            _base(self.graph, r)
            for r in (*self.graph.outputs, *self.graph.gradients.values(), *self.graph.input_gradients.values())
            if r is not None
        }
        for node in self.graph.nodes:
            if not is_view(node):
                for ref in node.refs():
                    readers.setdefault(_base(self.graph, ref), []).append(node)
        for node in self.graph.nodes:
            if is_view(node) or node.placeholder:
                continue
            alone = not fusable(node)
            sources = [self.graph.nodes[_base(self.graph, r).node] for r in node.refs()]
            self._reads[node.id] = tuple(alone or not fusable(s) or s.phase != node.phase for s in sources)
            self._writes[node.id] = tuple(
                alone
                or Ref(node.id, i) in results
                or any(not fusable(u) or u.phase != node.phase for u in readers.get(Ref(node.id, i), ()))
                for i in range(len(node.outs))
            )

    def stored(self, node: int, out: int) -> bool:
        """Whether a result reaches memory, rather than living inside of a fused kernel."""
        return self._writes[node][out]

    def seconds(self, node: Node, options: Sequence[Option]) -> Array:
        """Time of each option, float64[K]."""
        metas = [self.graph.meta(r) for r in node.refs()]
        moved = self._traffic(node, metas, options)
        if node.op in _MATMUL:
            return self._matmul(node, metas, options, moved)
        if node.op.startswith("autoparallel.attention"):
            return self._attention(node, metas, options, moved)
        if node.op.startswith("autoparallel.experts"):
            return self._experts(node, metas, options, moved)
        if node.op.startswith("autoparallel.grouped"):
            return self._grouped(node, metas, options, moved)
        seconds = self.machine.traffic_s(moved)
        if node.op in self.custom:
            sizes = self.machine.mesh.sizes
            local = [[_local(m, p, sizes) for m, p in zip(metas, ins, strict=True)] for _, ins in options]
            flops = np.array([self.custom[node.op](shapes) for shapes in local], dtype=np.float64)
            rate = self.machine.peak(metas[0].dtype if metas and metas[0].floating else "bfloat16") * self.machine.training(
                "gemm_bf16"
            )
            seconds = np.maximum(seconds, flops / rate)
        return seconds

    def _traffic(self, node: Node, metas: Sequence[Meta], options: Sequence[Option]) -> Array:
        """Bytes read and written by each option."""
        sizes = self.machine.mesh.sizes
        total = np.zeros(len(options))
        for i, (meta, read) in enumerate(zip(metas, self._reads[node.id], strict=True)):
            if read:
                # A lookup reads the rows that it takes, not the table.
                n_bytes = 0.0 if node.op in _LOOKUPS and i == 0 else float(meta.bytes)
                total += n_bytes / np.array([shards(ins[i], sizes) for _, ins in options])
        for i, (out, write) in enumerate(zip(node.outs, self._writes[node.id], strict=True)):
            if write and out is not None:
                passes = 2.0 if node.op in _LOOKUPS else 1.0
                total += passes * out.bytes / np.array([shards(outs[i], sizes) for outs, _ in options])
        return total

    def _matmul(self, node: Node, metas: Sequence[Meta], options: Sequence[Option], moved: Array) -> Array:
        first = _MATMUL[node.op]
        a, b = metas[first], metas[first + 1]
        sizes = self.machine.mesh.sizes
        shapes = np.array(
            [(*_local(a, ins[first], sizes), _local(b, ins[first + 1], sizes)[-1]) for _, ins in options], dtype=np.float64
        )
        model = self.machine.gemm(a.dtype, DTYPE_BYTES[a.dtype])
        m, k, n = shapes[:, -3], shapes[:, -2], shapes[:, -1]
        batch = shapes[:, 0] if len(a.shape) == 3 else 1.0
        out_bytes = float(DTYPE_BYTES[node.outs[0].dtype]) if node.outs[0] is not None else 2.0
        return np.maximum(batch * model.seconds(m, n, k, out_bytes=out_bytes), self.machine.traffic_s(moved))

    def _grouped(self, node: Node, metas: Sequence[Meta], options: Sequence[Option], moved: Array) -> Array:
        """Rows spread evenly over the groups; a rank that holds a part of the groups computes that part of the rows."""
        sizes = self.machine.mesh.sizes
        outer = node.op == "autoparallel.grouped_outer"
        x, other = metas[:2]
        groups = node.args[3] if outer else other.shape[0]
        seconds = np.zeros(len(options))
        model = self.machine.gemm(x.dtype, DTYPE_BYTES[x.dtype])
        for i, (outs, ins) in enumerate(options):
            k, n = _local(x, ins[0], sizes)[1], _local(other, ins[1], sizes)[-1]
            held = groups / cuts(outs[0] if outer else ins[1], sizes).get(0, 1)
            rows = x.shape[0] / groups
            m, width, depth = (k, n, rows) if outer else (rows, n, k)
            seconds[i] = held * _product_s(model, (m, width, depth), x.dtype)
        return np.maximum(seconds, self.machine.traffic_s(moved))

    def _experts(self, node: Node, metas: Sequence[Meta], options: Sequence[Option], moved: Array) -> Array:
        """Forward: gate and up, down. Backward: gate and up again, and two products for each. Tokens spread evenly."""
        at = 1 if node.op.endswith("backward") else 0
        sizes = self.machine.mesh.sizes
        x, index, gate, down = metas[at], metas[at + 1], metas[at + 3], metas[-1]
        gates = len(metas) - at - 4
        model = self.machine.gemm(x.dtype, DTYPE_BYTES[x.dtype])
        seconds = np.zeros(len(options))
        for i, (_, ins) in enumerate(options):
            held, inner, hidden = _local(gate, ins[at + 3], sizes)
            inner, width = inner * gates, _local(down, ins[-1], sizes)[2]
            rows = index.elements / cuts(ins[at + 1], sizes).get(0, 1) / gate.shape[0]
            shapes = [(rows, inner, hidden), (rows, hidden, width)]
            if at:
                shapes = [shapes[0], (rows, width, hidden), (hidden, width, rows), (inner, hidden, rows), (rows, hidden, inner)]
            seconds[i] = held * sum(_product_s(model, s, x.dtype) for s in shapes)
            # Rows are copied in the experts' order and back; gated activations are written and read.
            copied = rows * held * (2.0 * hidden + 2.0 * inner) * (2.0 if at else 1.0)
            seconds[i] += float(self.machine.traffic_s(2.0 * copied * DTYPE_BYTES[x.dtype]))
        return np.maximum(seconds, self.machine.traffic_s(moved))

    def _attention(self, node: Node, metas: Sequence[Meta], options: Sequence[Option], moved: Array) -> Array:
        """Forward: two products over the query–key pairs; backward: five (FlashAttention-2, arXiv 2307.08691, section 3.1)."""
        backward = node.op.endswith("backward")
        at = 1 if backward else 0
        q, k, v = metas[at : at + 3]
        causal = bool(node.args[7 if backward else 4])
        pairs = q.shape[2] * k.shape[2] * (0.5 if causal and q.shape[2] == k.shape[2] else 1.0)
        flops = 2.0 * q.shape[0] * q.shape[1] * pairs * (q.shape[3] + v.shape[3])
        rate = self.machine.attention_rate(q.dtype, float(k.shape[2]), q.shape[3])
        c = self.machine.constants
        if backward:
            flops *= c["attention_backward_flops"]
            rate *= c["attention_backward_efficiency"]
        cut = np.array([shards(ins[at], self.machine.mesh.sizes) for _, ins in options])
        return np.maximum(flops / cut / rate, self.machine.traffic_s(moved))


_MATMUL = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1}
"""Position of the left factor among the tensor inputs."""
_LOOKUPS = frozenset({"aten.embedding.default", "aten.gather.default", "aten.index.Tensor"})


def _product_s(model: GemmModel, shape: tuple[float, float, float], dtype: str) -> float:
    """Of one product [m, k] × [k, n] by (m, n, k)."""
    m, n, k = (np.asarray(s) for s in shape)
    return float(model.seconds(m, n, k, out_bytes=float(DTYPE_BYTES[dtype])))


def _local(meta: Meta, placements: Placements, sizes: Sequence[int]) -> tuple[float, ...]:
    cut = cuts(placements, sizes)
    return tuple(s / cut.get(d, 1) for d, s in enumerate(meta.shape))


def _base(graph: Graph, ref: Ref) -> Ref:
    while is_view(node := graph.nodes[ref.node]):
        (ref,) = node.refs()
    return ref
