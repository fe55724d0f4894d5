"""Tables that change shape rather than lose a figure.

:func:`print_bands` is for figures: columns that do not fit beside the others go into a further band below, which
repeats the first column, so that figures stay comparable down a column at any width.

:func:`print_records` is for listings whose last columns are long words: those go into an indented line below the row.
Where not even the main columns fit, every figure gets a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from autoparallel_core.report.console import put

_GAP = 2
_STYLES = {"fits": "green", "tight": "yellow", "does not fit": "red"}


@frozen
class Column:
    """One figure of every record. ``title`` may have two lines; ``words`` names the figure in running text."""

    title: str
    cells: Sequence[str]
    right: bool = True
    main: bool = True
    starts: bool = False
    """A good place for a further band to begin."""
    words: str = field(default="")
    """``{}`` stands for the value, e.g. ``"{} tokens per micro-batch"``; default: title and value."""

    @property
    def width(self) -> int:
        return max(cell_len(t) for t in (*self.title.split("\n"), *self.cells, ""))

    def sentence(self, row: int) -> str:
        cell = self.cells[row]
        return self.words.format(cell) if self.words else f"{self.title.replace(chr(10), ' ')} {cell}"


def _line(columns: Sequence[Column], texts: Sequence[str], style: str = "") -> Text:
    out = Text(style=style)
    for i, (column, text) in enumerate(zip(columns, texts, strict=True)):
        fill = " " * (column.width - cell_len(text))
        out.append((fill + text) if column.right else (text + fill), style=_STYLES.get(text.split(" +")[0].split(" −")[0], ""))
        if i < len(columns) - 1:
            out.append(" " * _GAP)
    out.rstrip()
    return out


def _table_width(columns: Sequence[Column]) -> int:
    return sum(c.width for c in columns) + _GAP * (len(columns) - 1)


def _header(console: Console, columns: Sequence[Column]) -> None:
    height = max(len(c.title.split("\n")) for c in columns)
    titles = [[""] * (height - len(t)) + t for t in (c.title.split("\n") for c in columns)]
    for h in range(height):
        console.print(_line(columns, [t[h] for t in titles], "bold"), soft_wrap=True)


def _packed(key: Column, rest: Sequence[Column], width: int) -> list[Sequence[Column]]:
    """The fewest bands that hold the columns in order; among those, breaks where a column ``starts`` one, then full bands first.

    A column wider than the console has a band of its own.
    """
    best: list[tuple[int, int, int]] = [(0, 0, 0)]  # bands, breaks elsewhere, minus where the last band begins
    for end in range(1, len(rest) + 1):
        options = []
        for begin in range(end - 1, -1, -1):
            if begin < end - 1 and _table_width([key, *rest[begin:end]]) > width:
                break
            bands, elsewhere, _ = best[begin]
            options.append((bands + 1, elsewhere + (begin > 0 and not rest[begin].starts), -begin))
        best.append(min(options))
    out: list[Sequence[Column]] = []
    end = len(rest)
    while end:
        begin = -best[end][2]
        out.insert(0, rest[begin:end])
        end = begin
    return out


def print_bands(console: Console, columns: Sequence[Column]) -> None:
    """Print figures in one band, or in several that fit the width; the first column is the key that each band repeats."""
    key, *rest = columns
    bands = [[key, *part] for part in _packed(key, rest, console.width)]
    for i, part in enumerate(bands):
        if i:
            console.print()
        print_records(console, part)


def print_figures(console: Console, columns: Sequence[Column]) -> None:
    """Print a single record as one paragraph of figures."""
    put(console, " · ".join(c.sentence(0) for c in columns if c.cells[0]))


def print_records(console: Console, columns: Sequence[Column], *, indent: int = 4) -> None:
    """Print the records in the widest shape that the console holds."""
    n = len(columns[0].cells)
    if _table_width(columns) <= console.width:
        _header(console, columns)
        for row in range(n):
            console.print(_line(columns, [c.cells[row] for c in columns]), soft_wrap=True)
        return
    main, rest = [c for c in columns if c.main], [c for c in columns if not c.main]
    if _table_width(main) <= console.width:
        _header(console, main)
        for row in range(n):
            console.print(_line(main, [c.cells[row] for c in main]), soft_wrap=True)
            if details := [c.sentence(row) for c in rest if c.cells[row]]:
                put(console, " · ".join(details), indent=indent, style="dim")
        return
    for row in range(n):
        for i, c in enumerate(columns):
            if c.cells[row]:
                put(console, c.sentence(row), indent=0 if i == 0 else 2)
