"""What one campaign does, as plain data that every rank reads from a file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

Probe = dict[str, Any]
"""``{"table": name, column: value, …}``."""


@frozen
class Request:
    """One campaign. ``probes`` are in order of usefulness, so that a short budget ends with the best of them."""

    device: str
    """cuda (also ROCm) or cpu."""
    probes: tuple[Probe, ...]
    journal: str
    """File to which rank 0 appends every result, line by line."""
    ranks_per_node: int
    nodes: int = 1
    threads: int = 1
    """CPU threads of each rank; only where the device is the CPU."""
    budget_s: float | None = None
    seconds_per_probe: float = 0.2
    gpu: str = field(default="")
    """The preset that the measurements speak for; empty: the device itself."""

    @property
    def world(self) -> int:
        return self.ranks_per_node * self.nodes

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Request:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**raw, "probes": tuple(raw["probes"])})


def key_of(probe: Probe) -> str:
    """The same for equal probes in any order of columns."""
    return hashlib.sha256(json.dumps(probe, sort_keys=True).encode()).hexdigest()[:16]
