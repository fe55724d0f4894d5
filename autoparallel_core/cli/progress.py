"""A progress bar for searches that take longer than a second, on terminals only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

_PATIENCE_S = 1.0


class Progress:
    """Context manager; pass it as ``progress`` to a search.

    It is called with the strategies done and, when known, those in all. Nothing is drawn in the first second,
    nor when standard output or standard error is not a terminal.
    """

    def __init__(self, *, what: str = "searching", enabled: bool | None = None) -> None:
        self._what = what
        self._enabled = sys.stderr.isatty() and sys.stdout.isatty() if enabled is None else enabled
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, what: str) -> None:
        """Change the text in front of the bar."""
        self._what = what
        if self._bar is not None:
            self._bar.update(self._task, description=what)

    def __call__(self, done: float, total: float | None = None) -> None:
        if not self._enabled:
            return
        if self._bar is None:
            if time.monotonic() - self._started < _PATIENCE_S:
                return
            self._draw()
        self._bar.update(self._task, completed=done, total=total)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_terminal=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._what, total=None)
        self._bar.start()
