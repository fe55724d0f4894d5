"""Bytes that lattice adds and seconds that it hides. Axis legend: S strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

BUCKET_BYTES = 512e6
HIDEABLE = 0.8
"""Share of the reduction that can start before the backward pass ends: all but the first layers' gradients."""
BACKWARD = 2 / 3
"""Share of the computation that is backward."""


def bucket_bytes(batch: StrategyBatch) -> FloatArray:
    """Two buckets per GPU where there is more than one data-parallel rank: float64[S]."""
    return np.where(batch.dp * batch.cp > 1, 2 * BUCKET_BYTES, 0.0)


def hidden_reduction_s(cost: Mapping[str, FloatArray]) -> FloatArray:
    """At most what the backward computation covers: float64[S]."""
    backward = BACKWARD * (cost["gemm"] + cost["expert_gemm"] + cost["attention"])
    return np.minimum(HIDEABLE * cost["dp_comm"], backward)
