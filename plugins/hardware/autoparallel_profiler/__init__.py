"""Measures the machine at hand with torch: matrix products, attention, memory, launches, collectives.

``measure({"kind": "profile", …})`` runs a whole campaign, the one behind ``autoparallel profile``; the name of a table of
docs/reference/profile-schema.md as ``kind``, with the table's columns, times that one operator in this process.
torch is imported inside functions only: installing the plugin costs nothing where it is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.hookspecs import hookimpl

KERNELS = ("gemm", "expert_gemm", "attention", "memory", "launch")


@hookimpl
def measure(probe: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A campaign, or one operator; None for kinds that need several processes or are not known.

    Raises:
        SpecError: torch is missing, the machine has no such device, or a launcher is not there.
    """
    kind = probe.get("kind")
    if kind == "profile":
        from autoparallel_profiler.campaign import run_campaign

        return run_campaign(probe)
    if kind in KERNELS:
        from autoparallel_profiler.kernels import time_kernel

        return time_kernel(str(kind), {k: v for k, v in probe.items() if k not in {"kind", "device"}}, probe.get("device"))
    return None
