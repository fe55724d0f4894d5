"""Where reports are written: colour and width of the terminal, plain 80 columns when piped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text


class _Console(Console):
    """Lets a broken pipe reach the command, which knows the exit code for it (rich would end the process)."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(file: TextIO | None = None, width: int | None = None) -> Console:
    """A console for reports. ``COLUMNS`` and ``NO_COLOR`` are honoured; characters the encoding lacks become '?'."""
    stream = file if file is not None else sys.stdout
    if file is None and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    return _Console(file=stream, width=width, highlight=False, emoji=False, markup=False, legacy_windows=False)


def put(console: Console, text: str | Text = "", style: str | None = None, indent: int = 0) -> None:
    """Print one paragraph, folded at words to the console's width with a hanging indent; nothing is cut off."""
    body = Text(text, style=style or "") if isinstance(text, str) else text
    width = max(console.width - indent, 20)
    for line in body.wrap(console, width, overflow="fold") if body.plain else [Text()]:
        line.rstrip()
        console.print(Text(" " * indent) + line, soft_wrap=True)


def labelled(console: Console, rows: Sequence[tuple[str, str | Text]]) -> None:
    """``label  text`` rows, the text folded beside the labels."""
    pad = max((len(name) for name, _ in rows), default=0) + 2
    for name, value in rows:
        body = Text(value) if isinstance(value, str) else value
        for i, line in enumerate(body.wrap(console, max(console.width - pad, 20), overflow="fold")):
            line.rstrip()
            console.print(Text.assemble((f"{name if i == 0 else '':<{pad}}", "bold"), line), soft_wrap=True)


def bullets(console: Console, sentences: Iterable[str], indent: int = 0) -> None:
    """One dash per sentence, the folded lines aligned behind it."""
    for sentence in sentences:
        width = max(console.width - indent - 2, 20)
        for i, line in enumerate(Text(sentence).wrap(console, width, overflow="fold")):
            line.rstrip()
            console.print(Text(" " * indent + ("- " if i == 0 else "  ")) + line, soft_wrap=True)


def heading(console: Console, text: str) -> None:
    """A blank line and a bold title."""
    console.print()
    put(console, text, style="bold cyan")
