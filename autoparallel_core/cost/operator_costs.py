"""Seconds, saved bytes and launches of each kind of operator, on the local shapes of the layer keys.

Axis legend: U unique layer keys.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.cost.context_parallel import Exchange, exposed_s
from autoparallel_core.cost.layer_sum import LayerSum
from autoparallel_core.ops.kernels import attended_keys
from autoparallel_core.ops.mesh import ASSIGNMENT, Mesh
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.op import Attention, Axis, Elementwise, ExpertGemm, Gemm, Lookup, Loss, Op, Scan, TokenExchange

Array = NDArray[np.float64]


def launches(op: Op, mesh: Mesh, *, low: bool) -> Array | float:
    """Kernels launched one by one: quantised GEMMs also cast their input; grouped ones launch each expert's GEMM."""
    if isinstance(op, Gemm):
        return 2.0 if low and not op.precise else 1.0
    if isinstance(op, ExpertGemm):
        return np.ceil(op.experts.units / mesh.ep) * (2.0 if low else 1.0)
    return 1.0


def _gemm(t: LayerSum, block: Block, op: Op) -> None:
    assert isinstance(op, Gemm)
    mesh, hw = t.mesh, t.hw
    column = any(mesh.sharded(a) for a in op.n)
    row = mesh.sharded(op.k)
    m = (mesh.tokens if column or row else mesh.resident_tokens) * op.tokens_fraction
    n = sum((mesh.local(a) for a in op.n), np.zeros(len(mesh)))
    k = mesh.local(op.k)
    model = hw.gemm(precise=op.precise)
    wgrad = 0.0 if hw.frozen_weights else model.seconds(n, k, m, out_bytes=hw.accumulate_bytes)
    t.weight_grad += wgrad
    t.add("gemm", model.seconds(m, n, k), model.seconds(m, k, n) + wgrad)
    low = hw.low_precision and not op.precise
    if low:
        t.add("cast", hw.cast_s(m * k), hw.cast_s(m * n))
    t.keep(op, block, mesh.rows(op.k) * op.tokens_fraction * k * (hw.low_input_bytes if low else 2.0))
    _tensor_parallel(t, op, column=column, row=row)


def _tensor_parallel(t: LayerSum, op: Gemm, *, column: bool, row: bool) -> None:
    """Collectives of a column- or row-parallel GEMM (Korthikanti et al., arXiv 2205.05198, figure 5)."""
    mesh, hw = t.mesh, t.hw
    if column and not row:
        key = (op.k, op.weights[0].component if op.weights else "")
        if key in t.gathered:
            return
        t.gathered.add(key)
        one = _sequence_gather(t, mesh.tokens * op.k.size * 2.0)
        forward, backward = np.where(mesh.sp > 0, one, 0.0), np.where(mesh.sp > 0, one, 2 * one)
    elif row and not column:
        one = _sequence_gather(t, mesh.tokens * sum(a.size for a in op.n) * 2.0)
        forward, backward = np.where(mesh.sp > 0, one, 2 * one), np.where(mesh.sp > 0, one, 0.0)
    else:
        return
    live = mesh.tp > 1
    t.add("tp_comm", np.where(live, forward, 0.0) * hw.tp_exposed_forward, np.where(live, backward, 0.0) * hw.tp_exposed_backward)


def _sequence_gather(t: LayerSum, full_bytes: Array) -> Array:
    """All-gather to, or reduce-scatter of, ``full_bytes``; an all-reduce is two.

    Sharded tensors exchange along their first dimension and the sequence is the second: under sequence parallelism the whole
    buffer is read and written once more (torch.distributed._functional_collectives, chunk and cat of gather_dim and scatter_dim),
    unless a compiler folds that into the operator beside it.
    """
    mesh, hw, soft = t.mesh, t.hw, t.hw.problem.software
    one = hw.network.gather(full_bytes, mesh.tp, 1.0)
    if not (soft.sharded_dispatch and soft.elementwise == "eager"):
        return one
    return one + np.where(mesh.sp > 0, 2.0 * full_bytes / hw.hbm_bytes_per_s, 0.0)


def _expert_gemm(t: LayerSum, block: Block, op: Op) -> None:
    assert isinstance(op, ExpertGemm)
    mesh, hw = t.mesh, t.hw
    local_experts = np.ceil(op.experts.units / mesh.ep)
    m = mesh.routed_tokens(op.top_k)
    per_expert = m / local_experts
    n = sum((mesh.local(a) for a in op.n), np.zeros(len(mesh)))
    k = mesh.local(op.k)
    model = hw.gemm(precise=False)
    fill = per_expert / (per_expert + hw.expert_half_rows)
    more = (local_experts - 1) * n * k * model.operand_bytes
    wgrad = np.zeros(len(mesh))
    if not hw.frozen_weights:
        wgrad = local_experts * model.seconds(n, k, per_expert, out_bytes=hw.accumulate_bytes) / fill
    t.weight_grad += wgrad
    forward = model.seconds(m, n, k, extra_bytes=more) / fill
    t.add("expert_gemm", forward, model.seconds(m, k, n, extra_bytes=more) / fill + wgrad)
    if hw.low_precision:
        t.add("cast", hw.cast_s(m * k), hw.cast_s(m * n))
    t.keep(op, block, m * k * (hw.low_input_bytes if hw.low_precision else 2.0))


def _attention(t: LayerSum, block: Block, op: Op) -> None:
    assert isinstance(op, Attention)
    mesh, hw = t.mesh, t.hw
    heads = mesh.local(op.heads) / op.heads.width
    area = attended_keys(
        mesh.seq_len, causal=op.causal, window=op.window, chunk=op.chunk, top_k_keys=op.top_k_keys,
        tokens_per_key=op.tokens_per_key,
    )  # fmt: skip
    pairs = mesh.sequences * area / mesh.cp
    forward, backward = hw.attention_s(
        heads * pairs, op.heads.width, op.v_width, mesh.seq_len, heads * mesh.sequences * mesh.seq_len**2 / mesh.cp
    )
    t.add("attention", forward, backward)
    kv = mesh.local(op.kv_heads) / op.kv_heads.width * (op.kv_heads.width + op.v_width) / op.tokens_per_key
    q = mesh.local(op.heads) if op.query_saved else 0.0
    t.keep(op, block, mesh.tokens * (q + kv) * 2.0, what="qkv")
    if hw.unfused_attention:
        t.keep(
            op,
            block,
            heads * mesh.sequences * mesh.seq_len**2 / mesh.cp * hw.problem.constant("unfused_score_bytes"),
            what="scores",
        )
    if np.any(mesh.cp > 1) and op.v_width:
        width = op.heads.width + op.v_width
        held = Exchange(
            kv_bytes=mesh.tokens * kv * 2.0,
            query_bytes=mesh.tokens * heads * width * 2.0,
            kv_heads=mesh.local(op.kv_heads) / op.kv_heads.width,
            forward_s=forward,
            backward_s=backward,
        )
        t.add("cp_comm", *exposed_s(hw, mesh, held))


def _scan(t: LayerSum, block: Block, op: Op) -> None:
    """Chunked linear mixer: state update and read, and the attention inside a chunk (Mamba-2, arXiv 2405.21060, section 6)."""
    assert isinstance(op, Scan)
    mesh, hw = t.mesh, t.hw
    v = mesh.local(op.heads)
    k_width = op.key_heads.width
    flops = mesh.tokens * (4.0 * v * k_width + 2.0 * op.chunk * (v + v / op.heads.width * k_width))
    moved = mesh.tokens * (2.0 * v + 2.0 * mesh.local(op.key_heads)) * 2.0 * (2.0 if op.conv_width else 1.0)
    forward = hw.scan_s(flops, moved)
    t.add("scan", forward, hw.problem.constant("scan_backward_factor") * forward)
    t.keep(op, block, mesh.tokens * (v + 2.0 * mesh.local(op.key_heads)) * 2.0 * (2.0 if op.conv_width else 1.0), what="qkv")


def _elements(mesh: Mesh, axis: Axis, top_k: int) -> Array:
    if not top_k:
        return mesh.rows(axis) * mesh.local(axis)
    if ASSIGNMENT.get(axis.name) == "etp":
        return mesh.routed_tokens(top_k) * mesh.local(axis)
    return mesh.tokens * top_k / mesh.tp * mesh.local(axis)


def _elementwise(t: LayerSum, block: Block, op: Op) -> None:
    assert isinstance(op, Elementwise)
    mesh = t.mesh
    moved = sum((_elements(mesh, a, op.top_k) for a in (*op.reads, *op.writes)), np.zeros(len(mesh))) * 2.0
    forward = t.hw.elementwise_s(moved)
    t.add("elementwise", forward, 2 * forward)
    t.keep(op, block, sum((_elements(mesh, a, op.top_k) for a in op.saved), np.zeros(len(mesh))) * 2.0)


def _exchange(t: LayerSum, block: Block, op: Op) -> None:  # noqa: ARG001  (every pricing function has this signature)
    """Dispatch or combine: all-to-all over the expert group, gather or scatter over the expert-tensor group."""
    assert isinstance(op, TokenExchange)
    mesh, hw = t.mesh, t.hw
    token = mesh.tokens / mesh.tp * op.width.size * 2.0
    one = hw.network.exchange(token, op.top_k, mesh.ep, mesh.etp, once_per_rank=hw.dispatch_once)
    one = one * hw.ep_exposed
    etp = np.where(mesh.etp > 1, hw.network.gather(mesh.routed_tokens(op.top_k) * op.width.size * 2.0, mesh.etp, 1.0), 0.0)
    t.add("ep_comm", one, one)
    t.add("tp_comm", etp, etp)


def _lookup(t: LayerSum, block: Block, op: Op) -> None:  # noqa: ARG001
    assert isinstance(op, Lookup)
    mesh, hw = t.mesh, t.hw
    forward = hw.elementwise_s(mesh.tokens * op.width.size * 4.0)
    t.add("embedding", forward, 2 * forward)
    one = hw.network.gather(mesh.tokens * op.width.size * 2.0, mesh.tp, 1.0)
    live = mesh.tp > 1
    t.add("tp_comm", np.where(live, np.where(mesh.sp > 0, one, 2 * one), 0.0), np.where(live & (mesh.sp > 0), one, 0.0))


def _loss(t: LayerSum, block: Block, op: Op) -> None:  # noqa: ARG001
    assert isinstance(op, Loss)
    seconds = t.hw.loss_s(t.mesh.tokens * t.mesh.local(op.vocab))
    t.add("loss", seconds / 3, seconds * 2 / 3)


PRICE: dict[str, Callable[[LayerSum, Block, Op], None]] = {
    "gemm": _gemm,
    "expert_gemm": _expert_gemm,
    "attention": _attention,
    "scan": _scan,
    "elementwise": _elementwise,
    "token_exchange": _exchange,
    "lookup": _lookup,
    "loss": _loss,
}
