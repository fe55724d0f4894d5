"""Types of flag values: each refuses with a sentence that quotes the value and says what is legal.

Quantities accept a unit (``80GiB``, ``400Gb/s``, ``1.98PFLOP/s``); without one they are in the unit
that the flag's help names. Results are SI: bytes, bytes/s, FLOP/s.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from types import MappingProxyType

from autoparallel_core.cli.parser import suggestion

MEMORY: Mapping[str, float] = MappingProxyType({"": 1e9, "gb": 1e9, "gib": 2.0**30, "mib": 2.0**20, "tb": 1e12, "tib": 2.0**40})
BANDWIDTH: Mapping[str, float] = MappingProxyType(
    {"": 1e9, "gb/s": 1e9, "gib/s": 2.0**30, "tb/s": 1e12, "mb/s": 1e6, "gbit/s": 0.125e9, "gbps": 0.125e9}
)
FLOPS: Mapping[str, float] = MappingProxyType(
    {"": 1e12, "t": 1e12, "p": 1e15, "tflops": 1e12, "pflops": 1e15, "tflop/s": 1e12, "pflop/s": 1e15}
)
_SI_FROM = 1e9
"""A bare number from here on can only be SI units (989e12 FLOP/s, 450e9 bytes/s): no device has 10⁹ times the flag's unit."""
_UNIT_UP_TO = 1e6


def whole(least: int = 1) -> Callable[[str], int]:
    """A whole number of at least ``least``."""

    def read(text: str) -> int:
        legal = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
        if not re.fullmatch(r"[+-]?\d+", text.strip()):
            raise ArgumentTypeError(f"{text!r} is not {legal}")
        value = int(text)
        if value < least:
            raise ArgumentTypeError(f"{value} is too small, it must be at least {least}")
        return value

    return read


def quantity(units: Mapping[str, float], unit: str) -> Callable[[str], float]:
    """A positive amount with an optional unit out of ``units``; ``unit`` names the one that a bare number has."""

    def read(text: str) -> float:
        m = re.fullmatch(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*", text)
        if not m:
            raise ArgumentTypeError(f"{text!r} is not a number of {unit}")
        name = "gbit/s" if m[2] == "Gb/s" else m[2].lower()
        if name not in units:
            known = ", ".join(k for k in units if k)
            raise ArgumentTypeError(f"{text!r} has the unknown unit '{m[2]}'; a bare number is in {unit}, or use {known}")
        value = float(m[1])
        if not math.isfinite(value) or value <= 0:
            raise ArgumentTypeError(f"{text!r} must be greater than 0 {unit}")
        if name:
            return value * units[name]
        if value >= _SI_FROM:
            return value
        if value > _UNIT_UP_TO:
            raise ArgumentTypeError(f"{text!r} is neither a plausible number of {unit} nor of SI base units; write the unit")
        return value * units[""]

    return read


def number(*, above: float | None = None, least: float | None = None, most: float = math.inf) -> Callable[[str], float]:
    """A number within bounds: greater than ``above`` or at least ``least``, and at most ``most``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a number") from None
        low = f"above {above:g}" if above is not None else f"at least {least:g}" if least is not None else ""
        high = f"at most {most:g}" if math.isfinite(most) else ""
        inside = (above is None or value > above) and (least is None or value >= least) and value <= most
        if not math.isfinite(value) or not inside:
            raise ArgumentTypeError(f"{text} is out of range, it must be {' and '.join(filter(None, (low, high)))}")
        return value

    return read


def one_of(*legal: str) -> Callable[[str], str]:
    """One of a closed set of words."""

    def read(text: str) -> str:
        if text not in legal:
            raise ArgumentTypeError(f"{text!r} is not one of {', '.join(legal)}{suggestion(text, legal)}")
        return text

    return read
