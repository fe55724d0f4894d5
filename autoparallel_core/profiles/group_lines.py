"""Collectives of training by the size of their group: what training uses of a device that only its profile describes."""

from __future__ import annotations

import numpy as np

from autoparallel_core.profiles.fit import fit_line
from autoparallel_core.profiles.plausible import reach_bytes_per_s
from autoparallel_core.profiles.tables import Table
from autoparallel_core.spec.cluster import Gpu, GroupLine

_KINDS = (("gather", ("all_gather", "reduce_scatter"), 1.0), ("all_reduce", ("all_reduce",), 2.0))
"""Name, the kinds that it stands for, and how many gathers' worth of traffic one call is."""


def group_lines(gpu: Gpu, table: Table) -> dict[str, tuple[GroupLine, ...]]:
    """Latency and bus bandwidth of groups inside a node: gathers and scatters together, all-reduces as two halves."""
    out: dict[str, tuple[GroupLine, ...]] = {}
    for name, kinds, halves in _KINDS:
        lines = []
        for (ranks,), rows in table.where(np.isin(table["kind"], kinds)).by("ranks"):
            share = (ranks - 1) / ranks
            line = fit_line(share * rows.number("bytes")[0], rows.seconds / halves, 2.0 * reach_bytes_per_s(gpu, int(ranks)))
            lines.append(GroupLine(float(ranks), line.bytes_per_s, line.latency_s))
        out[name] = tuple(lines)
    return out
