"""Giving every weight of a model the format in which its checkpoint stores it."""

from __future__ import annotations

from attrs import evolve

from autoparallel_core.reading.quant_config import QuantPlan
from autoparallel_core.spec.arch import Block, Layer, ModelArch
from autoparallel_core.spec.op import Gemm, Op, Weight
from autoparallel_core.spec.quantization import Quantization


def apply_quantization(arch: ModelArch, plan: QuantPlan | None) -> ModelArch:
    """Set ``Weight.format`` of every weight that the plan stores differently from the model's dtype.

    Embeddings, norms, biases, routers and the head stay as they are unless a list names them.
    """
    if plan is None:
        return arch
    cache: dict[tuple[int, object], Block] = {}
    layer_cache: dict[tuple[Block, ...], Layer] = {}

    def of_layer(layer: Layer, index: int, block: int | None = None) -> Layer:
        key = (plan.ignored.key(index), *(p.key(index) for _, p in plan.listed), block)
        blocks = []
        for b in layer.blocks:
            k = (id(b), key)
            if k not in cache:
                cache[k] = _quantised(b, plan, index, block)
            blocks.append(cache[k])
        return layer_cache.setdefault(tuple(blocks), Layer(tuple(blocks)))

    n = len(arch.layers)
    return evolve(
        arch,
        layers=tuple(of_layer(layer, i) for i, layer in enumerate(arch.layers)),
        mtp=tuple(of_layer(layer, n + i, i) for i, layer in enumerate(arch.mtp)),
        epilogue=_quantised(arch.epilogue, plan),
        kv_dtype=plan.kv_dtype,
        quantization=Quantization(
            plan.method,
            plan.default or (plan.listed[0][0] if plan.listed else arch.weight_dtype),
            plan.ignored_patterns,
            plan.source,
        ),
    )


def _quantised(block: Block, plan: QuantPlan, layer: int | None = None, mtp: int | None = None) -> Block:
    ops = tuple(_quantised_op(op, plan, layer, mtp) for op in block.ops)
    return block if ops == block.ops else evolve(block, ops=ops)


def _quantised_op(op: Op, plan: QuantPlan, layer: int | None, mtp: int | None) -> Op:
    kept = isinstance(op, Gemm) and op.precise
    weights = tuple(_quantised_weight(w, plan, layer, mtp, kept=kept) for w in op.weights)
    return op if weights == op.weights else evolve(op, weights=weights)


def _quantised_weight(w: Weight, plan: QuantPlan, layer: int | None, mtp: int | None, *, kept: bool) -> Weight:
    if not w.linear:
        return w
    for fmt, patterns in plan.listed:
        if patterns.match(w.module, layer, block=mtp):
            return evolve(w, format=fmt)
    if kept or w.component in {"head", "router"} or plan.default is None or plan.ignored.match(w.module, layer, block=mtp):
        return w
    return evolve(w, format=plan.default)
