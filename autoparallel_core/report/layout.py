"""A table that changes shape rather than lose a figure.

Wide enough: one row per record. Narrower: the main columns in a row, the others in an indented line
below it. Narrower still: one ``title: value`` line per figure.
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
