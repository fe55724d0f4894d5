"""Bars in text: eighth-block horizontal bars, and stacked ones whose parts differ without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_COLOURS = ("blue", "green", "yellow", "magenta", "cyan", "red", "bright_blue", "bright_green", "bright_yellow", "bright_magenta")
_FILLS = "█▓▒░#=+:o."
"""One character per part, so that the picture reads without colour."""


def bar(share: float, width: int) -> str:
    """``share`` (0–1) of ``width`` cells; anything above zero shows at least the thinnest mark."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def part_styles(parts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Fill character and colour of each part, in order; they repeat after ten parts."""
    return {part: (_FILLS[i % len(_FILLS)], _COLOURS[i % len(_COLOURS)]) for i, part in enumerate(parts)}


def stacked(amounts: Mapping[str, float], capacity: float, width: int, styles: Mapping[str, tuple[str, str]]) -> Text:
    """One stacked bar on a scale of ``width`` cells for ``capacity``, with a mark ``|`` where the capacity ends.

    Parts are rounded so that the bar's length is that of the sum.
    """
    out, drawn, total = Text(), 0, 0.0
    for part, (fill, colour) in styles.items():
        total += max(amounts.get(part, 0.0), 0.0)
        upto = round(total / capacity * width) if capacity > 0 else 0
        if upto > drawn:
            out.append(fill * (upto - drawn), style=colour)
            drawn = upto
    if drawn < width:
        out.append(" " * (width - drawn) + "|")
    elif drawn > width:
        cells = out.split(allow_blank=True)[0]
        out = cells[:width] + Text("|") + cells[width:]
    else:
        out.append("|")
    return out


def legend(styles: Mapping[str, tuple[str, str]], names: Mapping[str, str]) -> Text:
    """``█ weights  ▓ gradients …``."""
    out = Text()
    for i, (part, (fill, colour)) in enumerate(styles.items()):
        out.append("  " if i else "").append(fill, style=colour).append(f" {names[part]}")
    return out
