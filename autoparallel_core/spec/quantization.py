"""How a checkpoint stores its weights: formats with exact bytes, and which tensor has which.

Reading a ``quantization_config`` is done by a parser elsewhere; this is its result.
"""

from __future__ import annotations

import re

from attrs import frozen

from autoparallel_core.errors import SpecError


@frozen
class WeightFormat:
    """``bytes_per_param`` counts scales and zero points; ``compute`` is the dtype of the GEMM's operands."""

    name: str
    bytes_per_param: float
    compute: str
    block: int | None = None
    """Weights that share a scale along the contracted axis: a width cut there is a multiple of it on every rank
    (None: no such rule)."""
    output_block: int | None = None
    """The same for the axis of the result: the other side of a square tile, or the results packed in one word."""


FORMATS: dict[str, WeightFormat] = {
    f.name: f
    for f in (
        WeightFormat("fp32", 4.0, "fp32"),
        WeightFormat("bf16", 2.0, "bf16"),
        WeightFormat("fp16", 2.0, "fp16"),
        WeightFormat("fp8", 1.0, "fp8"),
        WeightFormat("fp8_block128", 1.0 + 4.0 / (128 * 128), "fp8", 128, 128),
        WeightFormat("mxfp8", 1.0 + 1.0 / 32, "fp8", 32),
        WeightFormat("int8", 1.0, "int8"),
        WeightFormat("int8_weight_only", 1.0, "bf16"),
        WeightFormat("nvfp4", 0.5 + 1.0 / 16, "fp4", 16),
        WeightFormat("nvfp4_weight_only", 0.5 + 1.0 / 16, "bf16", 16),
        WeightFormat("mxfp4", 0.5 + 1.0 / 32, "fp4", 32),
        # bitsandbytes: one fp32 absmax per 64 weights; nested: an int8 absmax per 64 and one fp32 per 256 of those.
        WeightFormat("nf4", 0.5 + 4.0 / 64, "bf16", 64),
        WeightFormat("nf4_nested", 0.5 + 1.0 / 64 + 4.0 / (64 * 256), "bf16", 64),
    )
}


def int_format(bits: int, group_size: int, *, zero_point: bool) -> WeightFormat:
    """Weight-only integer format: fp16 scale per group, plus a packed zero point when asymmetric.

    ``group_size`` ≤ 0 means one scale per output channel (its share per parameter is negligible).
    Sources: GPTQ and AWQ checkpoint layouts (one fp16 scale, one packed ``bits`` zero per group; 32-bit words).
    """
    per_param = bits / 8
    if group_size > 0:
        per_param += 2.0 / group_size + (bits / 8 / group_size if zero_point else 0.0)
    name = f"int{bits}_g{group_size}{'z' if zero_point else ''}"
    return WeightFormat(name, per_param, "bf16", group_size if group_size > 0 else None, 32 // bits)


def fp8_block_format(block: int) -> WeightFormat:
    """FP8 with one fp32 scale per ``block × block`` tile (arXiv 2412.19437, section 3.3)."""
    return WeightFormat(f"fp8_block{block}", 1.0 + 4.0 / (block * block), "fp8", block, block)


def weight_format(name: str) -> WeightFormat:
    """Look a format up by name, also the ``int4_g128z`` and ``fp8_block64`` families. Raises SpecError for an unknown name."""
    if name in FORMATS:
        return FORMATS[name]
    if m := re.fullmatch(r"int(\d+)_g(-?\d+)(z?)", name):
        return int_format(int(m[1]), int(m[2]), zero_point=bool(m[3]))
    if m := re.fullmatch(r"fp8_block(\d+)", name):
        return fp8_block_format(int(m[1]))
    raise SpecError(f"unknown weight format '{name}'; known: {', '.join(FORMATS)}, int<bits>_g<group>[z], fp8_block<size>")


@frozen
class Quantization:
    """Result of reading a checkpoint's quantisation config, already applied to the weights of the arch."""

    method: str
    """As the checkpoint calls it: fp8, awq, gptq, compressed-tensors, mxfp4, modelopt …"""
    default_format: str
    ignored: tuple[str, ...] = ()
    """Module patterns that stay in the model's dtype."""
    source: str = "config.json"
