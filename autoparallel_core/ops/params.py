"""Counts of a model: parameters by component, bytes as stored, cache per token and state per sequence.

Conventions: a tied head counts once (with the embedding); multi-token-prediction layers are counted apart and
in no total; a vision or audio tower is counted as ``vision``, its connector to the language model (the weights
in a tower layer that are no tower component) as ``text``; buffers that training does not touch are no parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import ceil
from typing import Any

from attrs import frozen

from autoparallel_core.spec.arch import Block, CacheTensor, Layer, ModelArch
from autoparallel_core.spec.op import ExpertGemm, Weight
from autoparallel_core.spec.quantization import weight_format


def _by_block(blocks: Iterable[Block]) -> list[tuple[Block, int]]:
    """Distinct blocks (by identity: equal ones are shared) with how often they occur."""
    count: Counter[int] = Counter()
    first: dict[int, Block] = {}
    for b in blocks:
        count[id(b)] += 1
        first[id(b)] = b
    return [(first[k], n) for k, n in count.items()]


def _blocks(layers: Iterable[Layer]) -> Iterable[Block]:
    return (b for layer in layers for b in layer.blocks)


def _sizes(blocks: Iterable[Block]) -> Counter[str]:
    total: Counter[str] = Counter()
    for block, n in _by_block(blocks):
        for w in block.weights():
            total[w.component] += n * w.size
    return total


def _active_sizes(blocks: Iterable[Block]) -> float:
    """Parameters that one token's pass uses: of the routed experts only ``top_k`` of all."""
    total = 0.0
    for block, n in _by_block(blocks):
        for op in block.ops:
            share = op.top_k / op.experts.units if isinstance(op, ExpertGemm) else 1.0
            total += n * share * sum(w.size for w in op.weights)
    return total


def _language_blocks(arch: ModelArch) -> list[Block]:
    return [arch.prologue, *_blocks(arch.layers), arch.epilogue]


def parameter_counts(arch: ModelArch) -> dict[str, Any]:
    """Numbers of parameters: ``{total, text, active, vision, mtp, by_component}``.

    ``text`` is embedding, layers, final norm, head and any connector; ``total`` adds ``vision``;
    ``active`` is the part of ``text`` that one token uses; ``mtp`` is in none of them.
    ``by_component`` sums to ``total``.
    """
    blocks = _language_blocks(arch)
    components = _sizes(blocks)
    towers = _sizes(_blocks(arch.towers))
    connectors = sum(n for c, n in towers.items() if c != "tower")
    components.update(towers)
    text = sum(components.values()) - towers["tower"]
    return {
        "total": text + towers["tower"],
        "text": text,
        "active": round(_active_sizes(blocks)) + connectors,
        "vision": towers["tower"],
        "mtp": sum(_sizes(_blocks(arch.mtp)).values()),
        "by_component": dict(sorted(components.items())),
    }


def stored_bytes(weight: Weight, dtype: str) -> float:
    """Bytes of one tensor in the checkpoint, scales and zero points rounded up to whole blocks.

    ``dtype`` is the model's dtype, for tensors without a format of their own. Axes are (experts,) input, output.
    """
    fmt = weight_format(weight.format or dtype)
    if weight.format is None or fmt.block is None or len(weight.axes) < 2:
        return weight.size * fmt.bytes_per_param
    k, n = weight.axes[-2].size, weight.axes[-1].size
    matrices = weight.size // (k * n)
    tiles_n = ceil(n / fmt.block) if fmt.name.startswith("fp8_block") else n
    tile = fmt.block * fmt.block if fmt.name.startswith("fp8_block") else fmt.block
    bare = 0.5 if "fp4" in fmt.name or fmt.name.startswith("nf4") else 1.0 if "fp8" in fmt.name else _int_bits(fmt.name) / 8
    per_tile = (fmt.bytes_per_param - bare) * tile
    return matrices * (k * n * bare + ceil(k / fmt.block) * tiles_n * per_tile)


def _int_bits(name: str) -> int:
    return int(name.removeprefix("int").split("_", 1)[0])


def weight_bytes(arch: ModelArch, *, mtp: bool = False, towers: bool = True) -> float:
    """Bytes of the checkpoint's weights as stored."""
    blocks = _language_blocks(arch)
    blocks += list(_blocks(arch.mtp)) if mtp else []
    blocks += list(_blocks(arch.towers)) if towers else []
    return sum(n * sum(stored_bytes(w, arch.weight_dtype) for w in b.weights()) for b, n in _by_block(blocks))


@frozen
class LayerCache:
    """What decode keeps for one layer: bytes per token (up to ``limit_tokens``) and bytes per sequence."""

    kind: str
    bytes_per_token: float
    limit_tokens: int | None
    state_bytes: float


def _tensor_bytes(tensor: CacheTensor, dtype_bytes: float) -> float:
    width = dtype_bytes if tensor.dtype is None else weight_format(tensor.dtype).bytes_per_param
    return tensor.axis.size * width / tensor.tokens_per_entry


def block_cache(block: Block, dtype_bytes: float) -> LayerCache:
    """Cache of one block at ``dtype_bytes`` per element (fixed dtypes of a tensor win)."""
    limits = {c.limit_tokens for c in block.cache_per_token}
    return LayerCache(
        block.kind,
        sum(_tensor_bytes(c, dtype_bytes) for c in block.cache_per_token),
        limits.pop() if len(limits) == 1 else None,
        sum(_tensor_bytes(c, dtype_bytes) for c in block.cache_per_sequence),
    )


def kv_dtype_bytes(arch: ModelArch, dtype: str | None = None) -> float:
    """Bytes per cache element: of ``dtype``, else of what the checkpoint asks for, else of its 16-bit dtype."""
    name = dtype or arch.kv_dtype or ("bf16" if arch.weight_dtype == "fp32" else arch.weight_dtype)
    return weight_format(name).bytes_per_param


def kv_bytes_per_token(arch: ModelArch, dtype_bytes: float) -> float:
    """Bytes that one more token adds over all layers, while it is within every window (an upper bound beyond)."""
    return sum(n * block_cache(b, dtype_bytes).bytes_per_token for b, n in _by_block(_blocks(arch.layers)))


def kv_bytes_per_sequence(arch: ModelArch, tokens: int, dtype_bytes: float) -> float:
    """Bytes that one sequence of ``tokens`` keeps: windows and chunks hold at most their length, states are constant."""
    total = 0.0
    for b, n in _by_block(_blocks(arch.layers)):
        for c in b.cache_per_token:
            kept = tokens if c.limit_tokens is None else min(tokens, c.limit_tokens)
            total += n * kept * _tensor_bytes(c, dtype_bytes)
    return total + state_bytes_per_sequence(arch, dtype_bytes)


def state_bytes_per_sequence(arch: ModelArch, dtype_bytes: float) -> float:
    """Bytes of recurrent and convolution states that one sequence keeps whatever its length."""
    return sum(n * block_cache(b, dtype_bytes).state_bytes for b, n in _by_block(_blocks(arch.layers)))
