"""One forward step of a serving engine: seconds by cause for a mix of decoding sequences and prefill tokens.

The same operators as training, at serving shapes: weights are read at the checkpoint's precision, only the
experts that the step's tokens touch are read, the cache is read once per sequence. Axis legend: S strategies.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.ops.kernels import attended_keys
from autoparallel_core.ops.mesh import Mesh
from autoparallel_core.spec.arch import Block, CacheTensor
from autoparallel_core.spec.op import Attention, Elementwise, ExpertGemm, Gemm, Lookup, Op, Scan, TokenExchange
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]

CAUSES = ("gemm", "expert_gemm", "attention", "scan", "elementwise", "all_reduce", "all_to_all", "layer", "head", "host")


@frozen(eq=False)
class Load:
    """What one attention rank works on in the step, [S] each (or scalars)."""

    decode: Array
    """Sequences that decode one token."""
    context: Array
    """Tokens each of them has cached."""
    prefill: Array
    """Prompt tokens processed in this step."""
    prefill_len: float
    """Length of the prompts they belong to."""
    sampled: Array
    """Rows that go through the head."""

    @property
    def tokens(self) -> Array:
        return self.decode + self.prefill


@define(eq=False)
class _Step:
    hw: ServingHardware
    mesh: Mesh
    attn_dp: Array
    load: Load
    dtype: str
    seconds: dict[str, Array]

    def add(self, cause: str, seconds: Array, count: float) -> None:
        self.seconds[cause] = self.seconds[cause] + count * seconds

    @property
    def group_tokens(self) -> Array:
        """Tokens of all attention ranks that share the experts."""
        return self.load.tokens * self.attn_dp


def step_seconds(hw: ServingHardware, batch: StrategyBatch, load: Load) -> dict[str, Array]:
    """Seconds by cause of one step through the whole model (all pipeline stages one after another)."""
    problem = hw.problem
    mesh = Mesh.of(batch, 1.0)
    dtype = problem.inference.precision or problem.arch.weight_dtype
    zero = np.zeros(len(batch))
    step = _Step(hw, mesh, batch.attn_dp.astype(np.float64), load, dtype, dict.fromkeys(CAUSES, zero))
    c = problem.constant
    for layer, where in problem.arch.layer_classes():
        n = float(len(where))
        for block in layer.blocks:
            for op in block.ops:
                if price := _PRICE.get(op.kind):
                    price(step, block, op, n)
        if layer.blocks:
            step.add("layer", np.full(len(batch), c("serving_layer_s")), n)
        if any(op.kind == "expert_gemm" for op in layer.ops):
            floor = c("serving_moe_floor_s") * problem.cluster.gpu.serving.get("moe_floor_factor", 1.0)
            step.add("layer", np.full(len(batch), floor), n)
    for op in (*problem.arch.prologue.ops, *problem.arch.epilogue.ops):
        _ends(step, op)
    sequences = load.sampled * step.attn_dp
    step.seconds["host"] = c("serving_step_s") + c("serving_sequence_s") * sequences
    return step.seconds


def _gemm(t: _Step, block: Block, op: Op, n_layers: float) -> None:
    assert isinstance(op, Gemm)
    mesh = t.mesh
    m = t.load.tokens * op.tokens_fraction
    n = sum((mesh.local(a) for a in op.n), np.zeros(len(mesh)))
    weight_bytes, compute = t.hw.weight_rate(op.weights, t.dtype if not op.precise else t.hw.problem.arch.weight_dtype)
    t.add("gemm", t.hw.gemm_s(m, n, mesh.local(op.k), weight_bytes=weight_bytes, compute=compute), n_layers)
    row = mesh.sharded(op.k) and not any(mesh.sharded(a) for a in op.n)
    if row and not _inside_experts(block, op):
        width = sum(a.size for a in op.n)
        t.add("all_reduce", t.hw.collective_s("all_reduce", m * width * 2.0, mesh.tp), n_layers)


def _inside_experts(block: Block, op: Gemm) -> bool:
    """Shared experts: their partial sums ride on the reduction of the routed ones."""
    return (
        any(isinstance(o, TokenExchange) for o in block.ops) and bool(op.weights) and op.weights[0].component == "shared_experts"
    )


def _expert_gemm(t: _Step, block: Block, op: Op, n_layers: float) -> None:  # noqa: ARG001  (one signature for all)
    assert isinstance(op, ExpertGemm)
    mesh, c = t.mesh, t.hw.problem.constant
    experts = float(op.experts.units)
    local = np.ceil(experts / mesh.ep)
    tokens = t.group_tokens
    alike = 1.0 + c("serving_routing_spread") * np.maximum(tokens - 1.0, 0.0)
    touched = local * (1.0 - (1.0 - op.top_k / experts) ** alike)
    visits = tokens * op.top_k * local / experts
    n = sum((mesh.local(a) for a in op.n), np.zeros(len(mesh)))
    weight_bytes, compute = t.hw.weight_rate(op.weights, t.dtype)
    t.add(
        "expert_gemm", t.hw.expert_s(visits, touched, n, mesh.local(op.k), weight_bytes=weight_bytes, compute=compute), n_layers
    )


def _attention(t: _Step, block: Block, op: Op, n_layers: float) -> None:
    assert isinstance(op, Attention)
    mesh, hw, load = t.mesh, t.hw, t.load
    heads = mesh.local(op.heads) / op.heads.width
    sparse = op.top_k_keys if op.v_width else None
    limit = min([x for x in (op.window, op.chunk, sparse) if x is not None], default=None)
    keys = load.context / op.tokens_per_key
    keys = np.minimum(keys, float(limit)) if limit is not None else keys
    fp8 = "_fp8" if hw.kv_bytes <= 1.0 else ""
    if op.latent is not None and op.latent_v is not None:
        moved = load.decode * keys * op.latent * hw.kv_bytes
        flops = 2.0 * load.decode * keys * heads * (op.latent + op.latent_v)
        decode = hw.decode_attention_s(moved, flops, f"mla_decode{fp8}")
    else:
        kv = mesh.local(op.kv_heads) / op.kv_heads.width
        moved = load.decode * keys * kv * (op.kv_heads.width + op.v_width) * hw.kv_bytes
        flops = 2.0 * load.decode * keys * heads * (op.heads.width + op.v_width)
        decode = hw.decode_attention_s(moved, flops, f"decode{fp8}")
    seconds = np.where(load.decode > 0, decode, 0.0)
    if load.prefill_len > 0:
        area = attended_keys(
            load.prefill_len, causal=op.causal, window=op.window, chunk=op.chunk, top_k_keys=sparse,
            tokens_per_key=op.tokens_per_key,
        )  # fmt: skip
        pairs = load.prefill * area / load.prefill_len
        work = 2.0 * heads * pairs * (op.heads.width + op.v_width)
        seconds = seconds + hw.prefill_attention_s(work, "mla_prefill" if op.latent is not None else "prefill")
    if op.v_width == 0:
        seconds = seconds + hw.gpu.serving.get("indexer_s", hw.problem.constant("serving_indexer_s"))
    t.add("attention", seconds, n_layers)
    del block


def _scan(t: _Step, block: Block, op: Op, n_layers: float) -> None:
    """Decode reads and writes each sequence's state; prefill runs the chunked form."""
    assert isinstance(op, Scan)
    mesh, hw, load = t.mesh, t.hw, t.load
    state = sum((_state_bytes(mesh, x) for x in block.cache_per_sequence), np.zeros(len(mesh)))
    decode = 2.0 * load.decode * state / (hw.gpu.hbm_bytes_per_s * hw.problem.constant("serving_stream_share"))
    v = mesh.local(op.heads)
    flops = load.prefill * (4.0 * v * op.key_heads.width + 2.0 * op.chunk * (v + v / op.heads.width * op.key_heads.width))
    fixed = hw.gpu.serving.get("scan_s", hw.problem.constant("serving_scan_s"))
    t.add("scan", fixed + decode + flops / (0.25 * hw.gpu.peak("bf16")), n_layers)


def _state_bytes(mesh: Mesh, tensor: CacheTensor) -> Array:
    return mesh.local(tensor.axis) * (4.0 if tensor.dtype == "fp32" else 2.0)


def _elementwise(t: _Step, block: Block, op: Op, n_layers: float) -> None:  # noqa: ARG001
    assert isinstance(op, Elementwise)
    tokens = t.group_tokens * op.top_k / t.mesh.ep if op.top_k else t.load.tokens
    moved = tokens * 2.0 * sum((t.mesh.local(a) for a in (*op.reads, *op.writes)), np.zeros(len(t.mesh)))
    t.add("elementwise", t.hw.elementwise_s(moved), n_layers)


def _exchange(t: _Step, block: Block, op: Op, n_layers: float) -> None:  # noqa: ARG001
    """Expert outputs are reduced over tp when attention is tensor-parallel, exchanged when it is data-parallel."""
    assert isinstance(op, TokenExchange)
    mesh, hw = t.mesh, t.hw
    ranks = mesh.tp * t.attn_dp
    message = t.load.tokens * op.width.size
    if op.direction == "combine":
        t.add("all_reduce", np.where(t.attn_dp > 1, 0.0, hw.collective_s("all_reduce", message * 2.0, mesh.tp)), n_layers)
    copies = ranks * (1.0 - (1.0 - 1.0 / np.maximum(ranks, 1.0)) ** op.top_k)
    width = 1.0 if op.direction == "dispatch" else 2.0
    exchange = hw.collective_s(op.direction, message / mesh.tp * copies * width, ranks)
    gathered = hw.collective_s("all_gather", t.group_tokens * op.width.size * 2.0, ranks)
    t.add("all_to_all", np.where(t.attn_dp > 1, np.where(mesh.ep > 1, exchange, gathered), 0.0), n_layers)


def _ends(t: _Step, op: Op) -> None:
    """Embedding and head: the head sees only the rows that are sampled."""
    mesh, hw, load = t.mesh, t.hw, t.load
    if isinstance(op, Lookup):
        t.add("elementwise", hw.elementwise_s(load.tokens * op.width.size * 4.0), 1.0)
        t.add("all_reduce", hw.collective_s("all_reduce", load.tokens * op.width.size * 2.0, mesh.tp), 1.0)
    elif isinstance(op, Gemm):
        weight_bytes, compute = hw.weight_rate(op.weights, hw.problem.arch.weight_dtype)
        n = sum((mesh.local(a) for a in op.n), np.zeros(len(mesh)))
        t.add("head", hw.gemm_s(load.sampled, n, mesh.local(op.k), weight_bytes=weight_bytes, compute=compute), 1.0)
        t.add("head", hw.collective_s("all_gather", load.sampled * sum(a.size for a in op.n) * 2.0, mesh.tp), 1.0)


_PRICE: dict[str, Callable[[_Step, Block, Op, float], None]] = {
    "gemm": _gemm,
    "expert_gemm": _expert_gemm,
    "attention": _attention,
    "scan": _scan,
    "elementwise": _elementwise,
    "token_exchange": _exchange,
}
