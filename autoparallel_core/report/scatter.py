"""A scatter plot of predicted against measured values in characters, both axes logarithmic and equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

MARKS = ".o@"
"""One run, two to four, five and more in a cell."""


def scatter(pairs: Sequence[tuple[float, float]], *, width: int = 60, height: int = 18) -> list[str]:
    """Lines of the plot: ``pairs`` of (predicted, measured), the diagonal drawn where they agree. Empty without pairs."""
    if not pairs:
        return []
    values = [v for pair in pairs for v in pair]
    low, high = math.log10(min(values)) - 0.02, math.log10(max(values)) + 0.02
    span = max(high - low, 1e-9)

    def cell(v: float, cells: int) -> int:
        return min(cells - 1, max(0, int((math.log10(v) - low) / span * cells)))

    counts = [[0] * width for _ in range(height)]
    for predicted, measured in pairs:
        counts[cell(predicted, height)][cell(measured, width)] += 1
    left = max(len(short(10**high)), len(short(10**low)))
    lines = []
    for y in reversed(range(height)):
        row = ""
        for x in range(width):
            n = counts[y][x]
            on_diagonal = int((x + 0.5) / width * height) == y
            row += MARKS[0 if n == 1 else 1 if n < 5 else 2] if n else "/" if on_diagonal else " "
        label = short(10**high) if y == height - 1 else short(10**low) if y == 0 else ""
        lines.append(f"{label:>{left}} |{row.rstrip()}")
    lines.append(f"{'':>{left}} +{'-' * width}")
    right = short(10**high)
    lines.append(f"{'':>{left}}  {short(10**low):<{width - len(right)}}{right}")
    return lines


def short(v: float) -> str:
    """Two significant digits with k or M."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if v >= limit:
            return f"{v / limit:.2g}{unit}" if v / limit < 100 else f"{v / limit:.0f}{unit}"
    return f"{v:.2g}" if v < 100 else f"{v:.0f}"
