"""Numbers as people read them. Memory is in decimal gigabytes, as run records and data sheets print it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

_HOURS_FROM_S = 1e4
"""From here on a time reads better in hours."""


def plural(n: float, noun: str, many: str = "") -> str:
    """``1 request``, ``1,204 requests``."""
    return f"{count(n)} {noun if n == 1 else many or noun + 's'}"


def gigabytes(n_bytes: float) -> str:
    """``61.2``: gigabytes with the digits that matter."""
    gb = n_bytes / 1e9
    return f"{gb:,.1f}" if abs(gb) >= 0.05 or gb == 0 else f"{gb:.2g}"


def tenths(n_bytes: float) -> str:
    """``61.2``, ``0.0``, ``−3.8``: gigabytes to one decimal, for columns."""
    text = f"{n_bytes / 1e9:,.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def memory(n_bytes: float) -> str:
    """``61.2 GB``; small amounts in MB or kB."""
    if abs(n_bytes) >= 0.95e9 or n_bytes == 0:
        return f"{gigabytes(n_bytes)} GB"
    return f"{n_bytes / 1e6:,.1f} MB" if abs(n_bytes) >= 0.95e6 else f"{n_bytes / 1e3:,.1f} kB"


def seconds(s: float) -> str:
    """``5.05 s``, ``812 ms``, ``12.3 µs``, ``26.4 h``, with three significant digits."""
    if abs(s) >= _HOURS_FROM_S:
        return f"{significant(s / 3600)} h"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(s) >= scale * 0.9995:
            return f"{significant(s / scale)} {unit}"
    return "0 s" if s == 0 else f"{significant(s / 1e-9)} ns"


def significant(x: float, digits: int = 3) -> str:
    """``x`` to so many significant digits, never in exponent notation, thousands separated."""
    if x == 0:
        return "0"
    exponent = int(f"{x:.{digits - 1}e}".split("e")[1])
    return f"{x:,.{max(digits - 1 - exponent, 0)}f}"


def parameters(n: float) -> str:
    """``70.55 B``, ``8.03 B``, ``135 M``."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if n >= scale:
            return f"{significant(n / scale, 4)} {unit}"
    return f"{n:,.0f}"


def count(n: float) -> str:
    """``1,204``; a fraction keeps one decimal."""
    return f"{n:,.0f}" if n == int(n) else f"{n:,.1f}"


def flops(per_s: float) -> str:
    """``989 TFLOP/s``."""
    return f"{significant(per_s / 1e12)} TFLOP/s"


def bandwidth(bytes_per_s: float) -> str:
    """``450 GB/s``, ``3.35 TB/s``."""
    return f"{significant(bytes_per_s / 1e12)} TB/s" if bytes_per_s >= 1e12 else f"{significant(bytes_per_s / 1e9)} GB/s"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"


def change(ratio: float) -> str:
    """``+4.2%`` for 1.042: a signed change; ``±0.0%`` where it rounds to nothing."""
    text = f"{100 * (ratio - 1):+.1f}%"
    return "±0.0%" if text[1:] == "0.0%" else text.replace("-", "−")


def signed_memory(n_bytes: float) -> str:
    """``+9.1 GB`` or ``−800.0 MB``."""
    return ("+" if n_bytes >= 0 else "−") + memory(abs(n_bytes))


def runs(values: Sequence[int]) -> str:
    """Run lengths: ``(20, 20)`` → ``2×20``, ``(4, 4, 4, 2)`` → ``3×4 2``."""
    out = []
    for value, group in groupby(values):
        n = len(list(group))
        out.append(f"{n}×{value}" if n > 1 else str(value))
    return " ".join(out)
