"""What was measured so far, line by line: a campaign that is interrupted loses nothing and goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from autoparallel_profiler.request import Probe, key_of


@frozen
class Journal:
    """A file whose first line says what is measured and whose other lines hold one result each."""

    path: Path
    head: Mapping[str, Any] = field(factory=dict)
    results: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    """By probe key: ``{"probe": …, "seconds": …, "spread": …}`` or ``{"probe": …, "failed": why}``."""

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Empty when there is none; a last line cut off by a crash is skipped."""
        if not path.is_file():
            return cls(path)
        lines = []
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                continue
        head = lines[0] if lines and "probe" not in lines[0] else {}
        results = {key_of(r["probe"]): r for r in lines if "probe" in r}
        return cls(path, head, results)

    def begun(self, head: Mapping[str, Any], *, fresh: bool) -> Journal:
        """This journal if it is about the same machine and software and not ``fresh``, else an empty one in its place."""
        if not fresh and self.head and {k: self.head.get(k) for k in head} == dict(head):
            return self
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(dict(head)) + "\n", encoding="utf-8")
        return Journal(self.path, dict(head))

    def missing(self, probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
        return tuple(p for p in probes if key_of(p) not in self.results)


def append(path: Path, result: Mapping[str, Any]) -> None:
    """One line, on disk when this returns."""
    with path.open("a", encoding="utf-8") as f:
        f.write(json.dumps(dict(result)) + "\n")
        f.flush()
        os.fsync(f.fileno())
