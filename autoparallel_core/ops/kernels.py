"""Seconds of one kernel from its local shape: roofline with shape-dependent efficiency.

Every function returns at least FLOPs/peak and bytes/bandwidth by construction: efficiencies are ≤ 1
and the two bounds are joined by a maximum. Shapes are float arrays that broadcast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.ops.ledger import note

Array = NDArray[np.float64]


@frozen
class GemmModel:
    """One dtype on one GPU, as training sees it (shape efficiency by saturation of the reduction length).

    ``half_k`` is the reduction length at which the tensor cores reach half of ``efficiency``: prologue and
    epilogue of a tile cost as much as that many steps (saturation form, fitted on published training runs).
    """

    peak_flops: float
    efficiency: float
    hbm_bytes_per_s: float
    half_k: float
    operand_bytes: float
    misaligned: float
    """Factor on throughput when a local dimension is not a multiple of 64."""
    points: Any = None
    """Measured points of this kernel class, whose shapes' deviations from the form are laid on it."""

    def seconds(self, m: Array, n: Array, k: Array, *, out_bytes: float = 2.0, extra_bytes: Array | float = 0.0) -> Array:
        """C[m,n] = A[m,k]·B[k,n]: max of compute and memory time, times what measured neighbours deviate."""
        form = self._form(m, n, k, out_bytes=out_bytes, extra_bytes=extra_bytes)
        if self.points is None:
            return form
        ratio, marks = self.points.deviation(self._form, m, n, k)
        out: Array = np.maximum(form * ratio, 2.0 * m * n * k / self.peak_flops)
        note("gemm", out, marks)
        return out

    def _form(self, m: Array, n: Array, k: Array, *, out_bytes: float = 2.0, extra_bytes: Array | float = 0.0) -> Array:
        eff = self.efficiency * k / (k + self.half_k)
        eff = eff * np.where((n % 64 == 0) & (k % 64 == 0) & (m % 8 == 0), 1.0, self.misaligned)
        flops = 2.0 * m * n * k
        traffic = (m * k + n * k) * self.operand_bytes + m * n * out_bytes + extra_bytes
        return np.maximum(flops / (self.peak_flops * eff), traffic / self.hbm_bytes_per_s)


def attended_keys(
    seq_len: float, *, causal: bool, window: int | None, chunk: int | None, top_k_keys: int | None, tokens_per_key: int = 1
) -> float:
    """Query–key pairs of one sequence: the area of the mask.

    ``tokens_per_key`` tokens share one (compressed) key; ``top_k_keys`` counts such keys.
    """
    s, r = float(seq_len), float(tokens_per_key)
    if chunk is not None and chunk < s:
        return (s * chunk / 2 if causal else s * chunk) / r
    limit = min(x for x in (window, top_k_keys * r if top_k_keys is not None else None, s) if x is not None)
    if limit < s:
        return (s * limit - limit * limit / 2 if causal else s * limit) / r
    return (s * s / 2 if causal else s * s) / r
