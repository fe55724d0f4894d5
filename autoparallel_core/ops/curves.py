"""Seconds of a measured collective from its curve: latency and bandwidth, or the measured points where they disagree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.spec.cluster import CollectiveCurve, Gpu

Array = NDArray[np.float64]


def curve_for(gpu: Gpu, kind: str, ranks: int) -> CollectiveCurve | None:
    """The curve of exactly ``ranks``, else of the next larger group, else of the largest; None without any."""
    curves = sorted(gpu.collectives.get(kind, ()), key=lambda c: c.ranks)
    return next((c for c in curves if c.ranks >= ranks), curves[-1] if curves else None)


def moved_share(kind: str, ranks: int) -> float:
    """Bytes that a rank moves over the buffer's: 2(n−1)/n for an all-reduce, else (n−1)/n (NCCL tests, PERFORMANCE.md)."""
    return (2.0 if kind.startswith("all_reduce") else 1.0) * (ranks - 1) / ranks


def curve_seconds(curve: CollectiveCurve, kind: str, n_bytes: Array | float) -> Array:
    """Seconds for buffers of ``n_bytes`` per rank, any shape.

    With knots: interpolated in the logarithms between them, the first one's time below, the last one's rate above.
    """
    size = np.asarray(n_bytes, dtype=np.float64)
    if not curve.knots:
        return np.asarray(curve.latency_s + moved_share(kind, curve.ranks) * size / curve.bus_bytes_per_s)
    at, seconds = np.array(curve.knots, dtype=np.float64).T
    inside = np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(at), np.log(seconds)))
    return np.asarray(inside * np.maximum(1.0, size / at[-1]))
