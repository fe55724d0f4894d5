"""Bytes of the number formats that tensors, caches and messages use."""

from __future__ import annotations

from autoparallel_core.errors import SpecError

DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "float32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "bfloat16": 2.0,
    "fp16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "nvfp4": 0.5 + 1 / 16,
    "int4": 0.5,
}


def dtype_bytes(name: str) -> float:
    """Bytes per element. Raises SpecError for an unknown dtype."""
    try:
        return DTYPE_BYTES[name]
    except KeyError:
        raise SpecError(f"unknown dtype '{name}'; known: {', '.join(DTYPE_BYTES)}") from None
