"""Reading of measured operator tables (gzip CSV), as numpy columns. Used by derive_efficiency.py."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

L2_BYTES = {
    "A100 SXM": 40e6,
    "H100 SXM": 50e6,
    "H200 SXM": 50e6,
    "H20": 60e6,
    "H800": 50e6,
    "L40S": 96e6,
    "RTX PRO 6000 Server": 128e6,
}
"""Second-level cache; tables measured in a loop over operands that fit see no memory traffic. Default 126 MB."""


class Table:
    """Rows of one file; text and number columns on demand."""

    def __init__(self, rows: Sequence[dict[str, str]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, name: str) -> np.ndarray:
        return np.array([r[name] for r in self.rows])

    def number(self, *names: str) -> list[np.ndarray]:
        return [np.array([float(r[n]) for r in self.rows]) for n in names]

    def where(self, keep: Callable[[dict[str, str]], bool]) -> Table:
        return Table([r for r in self.rows if keep(r)])

    def groups(self, *names: str) -> Iterator[tuple[tuple[str, ...], Table]]:
        by_key: dict[tuple[str, ...], list[dict[str, str]]] = {}
        for r in self.rows:
            by_key.setdefault(tuple(r[n] for n in names), []).append(r)
        for key in sorted(by_key):
            yield key, Table(by_key[key])


class Tables:
    """The folder of tables, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, Table] = {}

    def __getitem__(self, name: str) -> Table:
        if name not in self._read:
            with gzip.open(self.folder / f"{name}.csv.gz", "rt", newline="") as f:
                self._read[name] = Table(list(csv.DictReader(f)))
        return self._read[name]

    def of(self, name: str, gpu: str) -> Table:
        return self[name].where(lambda r: r["gpu"] == gpu)


def median_over_sources(table: Table, shape: Sequence[str], latency: str) -> Table:
    """One row per shape: the median latency over frameworks, which drops the one that was bound by its host."""
    out = []
    for key, same in table.groups(*shape):
        row = dict(zip(shape, key, strict=True))
        row[latency] = str(float(np.median(same.number(latency)[0])))
        out.append(row)
    return Table(out)
