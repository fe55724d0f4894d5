"""One forward step of a serving engine: seconds by cause for a mix of decoding sequences and prefill tokens.

The same operators as training, at serving shapes: weights are read at the checkpoint's precision, only the
experts that the step's tokens touch are read, the cache is read once per sequence.
Axis legend: S points (strategies, or strategies at several loads).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_policy import stored_format
from autoparallel_core.ops.mesh import Mesh
from autoparallel_core.spec.arch import Block, CacheTensor
from autoparallel_core.spec.op import Attention, Elementwise, ExpertGemm, Gemm, Lookup, Op, Scan, TokenExchange
from autoparallel_core.spec.quantization import WeightFormat
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]

CAUSES = ("gemm", "expert_gemm", "attention", "scan", "elementwise", "all_reduce", "all_to_all", "layer", "head", "host")


@frozen(eq=False)
class Load:
    """What one attention rank works on in the step, [S] each."""

    decode: Array
    """Sequences that decode."""
    verified: Array
    """Tokens of each of them in the step: one, or the drafts that it checks and one more."""
    context: Array
    """Tokens each of them has cached."""
    prefill: Array
    """Prompt tokens processed in this step."""
    prompt: Array
    """Length of the prompts they belong to."""
    cached: Array
    """Share of a prompt that is not processed because its prefix is cached."""
    sampled: Array
    """Rows that go through the head."""

    @property
    def tokens(self) -> Array:
        return self.decode * self.verified + self.prefill


@define(eq=False)
class _Step:
    hw: ServingHardware
    mesh: Mesh
    attn_dp: Array
    load: Load
    seconds: dict[str, Array]

    def add(self, cause: str, seconds: Array | float, count: float) -> None:
        self.seconds[cause] = self.seconds[cause] + count * seconds

    @property
    def group_tokens(self) -> Array:
        """Tokens of all attention ranks that share the experts."""
        return self.load.tokens * self.attn_dp

    def format(self, op: Op) -> WeightFormat:
        """How the op's matrix is stored; a tied head reads the embedding's 16 bit."""
        main = next((w for w in op.weights if w.linear), None)
        if main is not None:
            return stored_format(self.hw.problem, op, main)
        return WeightFormat("bf16", 2.0, "bf16")


def step_seconds(hw: ServingHardware, batch: StrategyBatch, load: Load) -> dict[str, Array]:
    """Seconds by cause of one step through the whole model (all pipeline stages one after another), float64[S]."""
    problem = hw.problem
    step = _Step(hw, Mesh.of(batch, 1.0), batch.attn_dp.astype(np.float64), load, dict.fromkeys(CAUSES, np.zeros(len(batch))))
    for layer, where in problem.arch.layer_classes():
        n = float(len(where))
        for block in layer.blocks:
            for op in block.ops:
                if price := _PRICE.get(op.kind):
                    price(step, block, op, n)
        if layer.blocks:
            step.add("layer", problem.constant("serving_layer_s"), n)
    for op in (*problem.arch.prologue.ops, *problem.arch.epilogue.ops):
        _ends(step, op)
    sequences = load.sampled * step.attn_dp
    step.seconds["host"] = problem.constant("serving_step_s") + problem.constant("serving_sequence_s") * sequences
    return step.seconds


def _gemm(t: _Step, block: Block, op: Op, n_layers: float) -> None:
    assert isinstance(op, Gemm)
    mesh = t.mesh
    m = t.load.tokens * op.tokens_fraction
    n = sum((mesh.local(a) for a in op.n), np.zeros(len(mesh)))
    t.add("gemm", t.hw.gemm_s(m, n, mesh.local(op.k), t.format(op)), n_layers)
    row = mesh.sharded(op.k) and not any(mesh.sharded(a) for a in op.n)
    if row and not _inside_experts(block, op):
        width = sum(a.size for a in op.n)
        t.add("all_reduce", t.hw.collective_s("all_reduce", m * width * 2.0, mesh.tp), n_layers)


def _inside_experts(block: Block, op: Gemm) -> bool:
    """Shared experts: their partial sums ride on the reduction of the routed ones."""
    return (
        any(isinstance(o, TokenExchange) for o in block.ops) and bool(op.weights) and op.weights[0].component == "shared_experts"
    )


def _expert_gemm(t: _Step, block: Block, op: Op, n_layers: float) -> None:
    assert isinstance(op, ExpertGemm)
    mesh, c = t.mesh, t.hw.problem.constant
    experts = float(op.experts.units)
    local = np.ceil(experts / mesh.ep)
    tokens = t.group_tokens
    alike = 1.0 + c("serving_routing_spread") * np.maximum(tokens - 1.0, 0.0)
    touched = local * (1.0 - (1.0 - op.top_k / experts) ** alike)
    visits = tokens * op.top_k * local / experts
    n = sum((mesh.local(a) for a in op.n), np.zeros(len(mesh)))
    fmt = t.format(op)
    t.add("expert_gemm", t.hw.expert_s(visits, touched, n, mesh.local(op.k), fmt), n_layers)
    if op is next(o for o in block.ops if isinstance(o, ExpertGemm)):
        # measured over both products and what is between them
        t.add("expert_gemm", t.hw.expert_fixed_s(fmt), n_layers)
        t.add("layer", c("serving_moe_floor_s"), n_layers)


def _attention(t: _Step, block: Block, op: Op, n_layers: float) -> None:  # noqa: ARG001  (one signature for all)
    assert isinstance(op, Attention)
    mesh, hw, load = t.mesh, t.hw, t.load
    heads = mesh.local(op.heads) / op.heads.width
    sparse = op.top_k_keys if op.v_width else None
    limit = min([x for x in (op.window, op.chunk, sparse) if x is not None], default=None)
    keys = load.context / op.tokens_per_key
    keys = np.minimum(keys, float(limit)) if limit is not None else keys
    fp8 = "_fp8" if hw.kv_bytes <= 1.0 else ""
    latent = op.latent is not None and op.latent_v is not None
    if latent:
        width = float(op.latent or 0) + float(op.latent_v or 0)
        moved = load.decode * (keys * float(op.latent or 0) * hw.kv_bytes + 2.0 * load.verified * heads * width)
        flops = 2.0 * load.decode * load.verified * keys * heads * width
    else:
        kv = mesh.local(op.kv_heads) / op.kv_heads.width
        moved = load.decode * keys * kv * (op.kv_heads.width + op.v_width) * hw.kv_bytes
        flops = 2.0 * load.decode * load.verified * keys * heads * (op.heads.width + op.v_width)
    decode = hw.attention_s("mla_decode" + fp8 if latent else "decode" + fp8, flops, moved)
    seconds = np.where(load.decode > 0, decode, 0.0)
    if np.any(load.prefill > 0):
        pairs = load.prefill * attended_per_token(load.prompt, load.cached, op, sparse)
        work = 2.0 * heads * pairs * (op.heads.width + op.v_width)
        kv_heads = mesh.local(op.kv_heads) / op.kv_heads.width
        moved = load.prefill * 2.0 * (heads + kv_heads) * (op.heads.width + op.v_width)
        prefill = hw.attention_s("mla_prefill" if latent else "prefill", work, moved)
        seconds = seconds + np.where(load.prefill > 0, prefill, 0.0)
    if op.v_width == 0:
        seconds = seconds + hw.gpu.serving.get("sparse_indexer_decode_s", hw.problem.constant("serving_indexer_s"))
    t.add("attention", seconds, n_layers)


def attended_per_token(prompt: Array, cached: Array, op: Attention, sparse: int | None) -> Array:
    """Mean keys that a processed prompt token attends to; those of a cached prefix come first and are not processed."""
    start = prompt * cached
    tokens = np.maximum(prompt - start, 1.0)
    if not op.causal:
        return np.asarray(prompt / op.tokens_per_key)
    if op.chunk is not None:
        return np.asarray(np.minimum(prompt, op.chunk) / 2.0 / op.tokens_per_key)
    limits = [float(x) for x in (op.window, sparse * op.tokens_per_key if sparse else None) if x is not None]
    limit = min(limits, default=np.inf)

    def area(length: Array) -> Array:
        inside = np.minimum(length, limit)
        return np.asarray(inside * inside / 2.0 + np.where(length > inside, (length - inside) * inside, 0.0))

    return np.asarray((area(prompt) - area(start)) / tokens / op.tokens_per_key)


def _scan(t: _Step, block: Block, op: Op, n_layers: float) -> None:
    """Decode reads and writes each sequence's state; prefill runs the chunked form."""
    assert isinstance(op, Scan)
    mesh, hw, load = t.mesh, t.hw, t.load
    state = sum((_state_bytes(mesh, x) for x in block.cache_per_sequence), np.zeros(len(mesh)))
    v = mesh.local(op.heads)
    flops = load.prefill * (4.0 * v * op.key_heads.width + 2.0 * op.chunk * (v + v / op.heads.width * op.key_heads.width))
    fixed = hw.gpu.serving.get(f"{op.algorithm}_decode_s", hw.problem.constant("serving_scan_s"))
    rate = hw.problem.constant("serving_scan_share") * hw.peak_plain
    t.add("scan", fixed + hw.stream_s(2.0 * load.decode * state) + flops / rate, n_layers)


def _state_bytes(mesh: Mesh, tensor: CacheTensor) -> Array:
    return mesh.local(tensor.axis) * (4.0 if tensor.dtype == "fp32" else 2.0)


def _elementwise(t: _Step, block: Block, op: Op, n_layers: float) -> None:  # noqa: ARG001
    assert isinstance(op, Elementwise)
    tokens = t.group_tokens * op.top_k / t.mesh.ep if op.top_k else t.load.tokens
    moved = tokens * 2.0 * sum((t.mesh.local(a) for a in (*op.reads, *op.writes)), np.zeros(len(t.mesh)))
    t.add("elementwise", t.hw.stream_s(moved * t.hw.problem.constant("elementwise_fused")), n_layers)


def _exchange(t: _Step, block: Block, op: Op, n_layers: float) -> None:
    """Expert outputs are reduced over tp when attention is tensor-parallel, exchanged when it is data-parallel."""
    assert isinstance(op, TokenExchange)
    mesh, hw = t.mesh, t.hw
    ranks = mesh.tp * t.attn_dp
    message = t.load.tokens * op.width.size
    if op.direction == "combine":
        t.add("all_reduce", np.where(t.attn_dp > 1, 0.0, hw.collective_s("all_reduce", message * 2.0, mesh.tp)), n_layers)
    if np.all(t.attn_dp == 1):
        return
    copies = ranks * (1.0 - (1.0 - 1.0 / np.maximum(ranks, 1.0)) ** op.top_k)
    experts = next(o for o in block.ops if isinstance(o, ExpertGemm))
    width = hw.operand_bytes(t.format(experts)) if op.direction == "dispatch" else 2.0
    exchange = hw.collective_s(op.direction, message / mesh.tp * copies * width, ranks)
    shared = hw.collective_s(GATHERED[op.direction], t.group_tokens * op.width.size * width, ranks)
    t.add("all_to_all", np.where(t.attn_dp > 1, np.where(mesh.ep > 1, exchange, shared), 0.0), n_layers)


GATHERED = {"dispatch": "all_gather", "combine": "reduce_scatter"}
"""What replaces the exchange where experts are cut by width and every rank needs every token."""


def _ends(t: _Step, op: Op) -> None:
    """Embedding and head: the head sees only the rows that are sampled."""
    mesh, hw, load = t.mesh, t.hw, t.load
    if isinstance(op, Lookup):
        t.add("elementwise", hw.stream_s(load.tokens * op.width.size * 4.0), 1.0)
        t.add("all_reduce", hw.collective_s("all_reduce", load.tokens * op.width.size * 2.0, mesh.tp), 1.0)
    elif isinstance(op, Gemm):
        n = sum((mesh.local(a) for a in op.n), np.zeros(len(mesh)))
        t.add("head", hw.gemm_s(load.sampled, n, mesh.local(op.k), t.format(op)), 1.0)
        t.add("head", hw.collective_s("all_gather", load.sampled * sum(a.size for a in op.n) * 2.0, mesh.tp), 1.0)


_PRICE: dict[str, Callable[[_Step, Block, Op, float], None]] = {
    "gemm": _gemm,
    "expert_gemm": _expert_gemm,
    "attention": _attention,
    "scan": _scan,
    "elementwise": _elementwise,
    "token_exchange": _exchange,
}
