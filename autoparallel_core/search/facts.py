"""Numbers of a model that legality rules ask about, read off its operators.

Each is computed once per model object: hashing a model of a hundred layers for an ordinary cache
would cost more than the answer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TypeVar

from attrs import frozen

from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.op import Attention, Axis, ExpertGemm, Gemm, Op, Scan, Weight
from autoparallel_core.spec.quantization import weight_format

T = TypeVar("T")


def once_per_model(function: Callable[[ModelArch], T]) -> Callable[[ModelArch], T]:
    """Cache by object identity for as long as the model lives."""
    kept: dict[int, tuple[weakref.ref[ModelArch], T]] = {}

    @wraps(function)
    def cached(arch: ModelArch) -> T:
        key = id(arch)
        entry = kept.get(key)
        if entry is not None and entry[0]() is arch:
            return entry[1]
        value = function(arch)
        kept[key] = (weakref.ref(arch, lambda _: kept.pop(key, None)), value)
        return value

    return cached


def _ops(arch: ModelArch) -> Iterator[Op]:
    for layer in arch.layers + arch.mtp:
        for block in layer.blocks:
            yield from block.ops


def _attentions(arch: ModelArch) -> Iterator[Attention]:
    """Attention that makes values (score-only indexers are replicated)."""
    return (op for op in _ops(arch) if isinstance(op, Attention) and op.v_width)


@once_per_model
def query_heads(arch: ModelArch) -> tuple[int, ...]:
    """Distinct numbers of query heads over all attention layers (heterogeneous models have several)."""
    return tuple(sorted({op.heads.units for op in _attentions(arch)})) or ((arch.num_heads,) if arch.num_heads else ())


@once_per_model
def kv_heads(arch: ModelArch) -> tuple[int, ...]:
    """Distinct numbers of key/value heads; in MLA every query head has its own key in training."""
    return tuple(sorted({op.kv_heads.units for op in _attentions(arch)})) or ((arch.num_kv_heads,) if arch.num_kv_heads else ())


@once_per_model
def has_latent_attention(arch: ModelArch) -> bool:
    """Whether some layer caches one latent per token (MLA)."""
    return any(op.latent for op in _attentions(arch))


@once_per_model
def routed_experts(arch: ModelArch) -> tuple[int, ...]:
    """Distinct numbers of routed experts over all MoE layers; empty for a dense model."""
    return tuple(sorted({op.experts.units for op in _ops(arch) if isinstance(op, ExpertGemm)}))


@once_per_model
def expert_widths(arch: ModelArch) -> tuple[int, ...]:
    """Distinct widths of one routed expert over all MoE layers; empty for a dense model."""
    axes = (a for op in _ops(arch) if isinstance(op, ExpertGemm) for a in op.n)
    return tuple(sorted({a.size for a in axes if a.name == "expert_ffn"}))


STATE_SPACE = ("mamba1", "mamba2")


@once_per_model
def scan_heads(arch: ModelArch) -> tuple[tuple[str, int, int], ...]:
    """``(algorithm, value heads, key heads or groups)`` of every kind of linear-time mixer in the model."""
    found = {(op.algorithm, op.heads.units, op.key_heads.units) for op in _ops(arch) if isinstance(op, Scan)}
    return tuple(sorted(found))


@once_per_model
def linear_attention_heads(arch: ModelArch) -> tuple[int, ...]:
    """Numbers of key and value heads of linear attention (gated delta, KDA, lightning)."""
    return tuple(sorted({n for kind, *heads in scan_heads(arch) if kind not in STATE_SPACE for n in heads}))


@once_per_model
def state_space_heads(arch: ModelArch) -> tuple[int, ...]:
    """Numbers of heads of Mamba-2 mixers."""
    return tuple(sorted({heads for kind, heads, _ in scan_heads(arch) if kind == "mamba2"}))


@once_per_model
def state_space_groups(arch: ModelArch) -> tuple[int, ...]:
    """Numbers of groups (shared B and C) of Mamba-2 mixers."""
    return tuple(sorted({groups for kind, _, groups in scan_heads(arch) if kind == "mamba2"}))


def is_moe(arch: ModelArch) -> bool:
    return bool(routed_experts(arch))


SHARDED_BY = {"heads": "tp", "kv_heads": "tp", "ffn": "tp", "expert_ffn": "etp"}
"""Which column cuts an axis of a quantised matrix (experts are cut whole, by ep)."""


@frozen
class QuantisedWidth:
    """A sharded axis of matrices that the checkpoint stores in blocks, and the block along that axis."""

    module: str
    axis: str
    units: int
    width: int
    format: str
    block: int

    @property
    def size(self) -> int:
        return self.units * self.width


@once_per_model
def quantised_widths(arch: ModelArch) -> tuple[QuantisedWidth, ...]:
    """Every sharded axis of a matrix stored in a block format, once per module, size and format."""
    found: dict[QuantisedWidth, None] = {}
    for op in _ops(arch):
        if isinstance(op, Gemm | ExpertGemm):
            for w in op.weights:
                found.update(dict.fromkeys(_sharded_axes(w, op.k)))
    return tuple(found)


def _sharded_axes(w: Weight, contracted: Axis) -> Iterator[QuantisedWidth]:
    if not (w.linear and w.format):
        return
    f = weight_format(w.format)
    for a in w.axes:
        block = f.block if a.name == contracted.name else f.output_block
        if block and a.name in SHARDED_BY:
            yield QuantisedWidth(w.module, a.name, a.units, a.width, w.format, block)
