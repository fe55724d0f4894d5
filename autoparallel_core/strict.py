"""A cattrs converter that accepts only what was written: no unknown keys, no number out of a string, no truncation."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import cattrs


@cache
def strict_converter() -> cattrs.Converter:
    """Structures plain data (TOML, JSON) into attrs classes; errors carry the path of the offending value."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(int, _whole)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(bool, _truth)
    return converter


def _number(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _whole(value: Any, _: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")  # noqa: TRY004  cattrs reports ValueError with its path
    return value


def _text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004  cattrs reports ValueError with its path
    return value


def _truth(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")  # noqa: TRY004  cattrs reports ValueError with its path
    return value
