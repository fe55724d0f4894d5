"""The GPU, its collectives and the engine's host as one serving step sees them.

Efficiencies are those measured on single operators (``Gpu.gemm``, ``expert_gemm``, ``attention``, ``collectives``).
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency, Gpu
from autoparallel_core.spec.dtypes import dtype_bytes
from autoparallel_core.spec.op import Weight
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.quantization import weight_format

Array = NDArray[np.float64]


@frozen(eq=False)
class ServingHardware:
    """Seconds of operators at serving shapes; arrays of S throughout."""

    problem: Problem
    kv_bytes: float
    """Bytes per element of the KV cache."""

    @classmethod
    def of(cls, problem: Problem) -> ServingHardware:
        """Raises SpecError for an unknown KV dtype."""
        work, arch = problem.inference, problem.arch
        return cls(problem, dtype_bytes(work.kv_dtype or arch.kv_dtype or arch.weight_dtype))

    @property
    def gpu(self) -> Gpu:
        return self.problem.cluster.gpu

    def weight_rate(self, weights: tuple[Weight, ...], dtype: str) -> tuple[float, str]:
        """Bytes per parameter and operand dtype of a GEMM from its weights' storage format.

        A format whose operands the GPU's tensor cores lack is computed in 16 bit (weight-only).
        """
        main = next((w for w in weights if w.linear), None)
        fmt = weight_format((main.format if main else None) or dtype)
        compute = fmt.compute if fmt.compute in self.gpu.peak_flops else "bf16"
        return fmt.bytes_per_param, compute

    def gemm_s(self, m: Array, n: Array, k: Array, *, weight_bytes: float, compute: str) -> Array:
        """t0 + root sum of squares of compute and memory time: the two overlap, but not at the ridge."""
        e = _efficiency(self.gpu, "gemm", compute)
        work = 2.0 * m * n * k / (self.gpu.peak(compute) * e.compute)
        moved = (n * k * weight_bytes + 2.0 * m * (k + n)) / (self.gpu.hbm_bytes_per_s * e.memory)
        return e.fixed_s + np.hypot(work, moved)

    def expert_s(self, visits: Array, touched: Array, n: Array, k: Array, *, weight_bytes: float, compute: str) -> Array:
        """Grouped GEMM: every touched expert is read whole and computes whole tiles of rows."""
        e = _efficiency(self.gpu, "expert_gemm", compute)
        dense = _efficiency(self.gpu, "gemm", compute)
        rows = visits + self.problem.constant("serving_expert_tile_rows") * touched
        work = 2.0 * rows * n * k / (self.gpu.peak(compute) * e.compute)
        moved = (touched * n * k * weight_bytes + 2.0 * visits * (k + n)) / (
            self.gpu.hbm_bytes_per_s * min(e.memory, dense.memory)
        )
        return np.hypot(work, moved)

    def decode_attention_s(self, moved: Array, flops: Array, kernel: str) -> Array:
        """Reading the cache, or the matrix work of many heads on one latent."""
        e = _efficiency(self.gpu, "attention", kernel)
        return e.fixed_s + np.maximum(moved / (self.gpu.hbm_bytes_per_s * e.memory), flops / (self.gpu.peak("bf16") * e.compute))

    def prefill_attention_s(self, flops: Array, kernel: str) -> Array:
        e = _efficiency(self.gpu, "attention", kernel)
        return flops / (self.gpu.peak("bf16") * e.compute)

    def elementwise_s(self, moved: Array) -> Array:
        return (
            moved
            * self.problem.constant("elementwise_fused")
            / (self.gpu.hbm_bytes_per_s * self.problem.constant("serving_stream_share"))
        )

    def collective_s(self, kind: str, n_bytes: Array, ranks: Array) -> Array:
        """Time of a collective among ``ranks`` neighbouring GPUs; across scale-up domains at the NIC's rate."""
        out = np.zeros(np.broadcast(n_bytes, ranks).shape)
        n_bytes = np.broadcast_to(n_bytes, out.shape)
        ranks = np.broadcast_to(ranks, out.shape)
        domain = self.problem.cluster.tiers[0].ranks
        for r in np.unique(ranks):
            rows = ranks == r
            if r > 1:
                out[rows] = (
                    self._inside(kind, n_bytes[rows], float(r))
                    if r <= domain
                    else self._across(kind, n_bytes[rows], float(r), domain)
                )
        return out

    def _inside(self, kind: str, n_bytes: Array, ranks: float) -> Array:
        curves = [c for name in (kind, f"{kind}_custom") for c in _nearest(self.gpu.collectives.get(name, ()), ranks)]
        if not curves:
            link = self.problem.cluster.tiers[0]
            curves = [CollectiveCurve(int(ranks), link.bytes_per_s, max(link.latency_s, 10e-6), "link rate", "assumed")]
        share = (ranks - 1) / ranks * (2.0 if kind == "all_reduce" else 1.0)
        return np.asarray(np.min([curve_s(c, n_bytes, share) for c in curves], axis=0))

    def _across(self, kind: str, n_bytes: Array, ranks: float, domain: int) -> Array:
        """Hierarchical: inside the domain, then between domains over all of its NICs."""
        outer = self.problem.cluster.tiers[-1]
        inner = self._inside(kind, n_bytes, float(domain)) if domain > 1 else np.zeros_like(n_bytes)
        nodes = ranks / domain
        share = (nodes - 1) / nodes * (2.0 if kind == "all_reduce" else 1.0)
        rate = outer.bytes_per_s * self.problem.constant("scale_out_efficiency")
        spread = 1.0 if kind in ("dispatch", "combine", "all_to_all") else float(domain)
        hops = np.ceil(np.log2(max(nodes, 2.0)))
        wait = hops * max(outer.latency_s, self.problem.constant("scale_out_latency_s"))
        return np.asarray(inner + share * n_bytes / spread / rate + wait)


def curve_s(curve: CollectiveCurve, n_bytes: Array, share: float) -> Array:
    """Measured knots inside their range (in logarithms), the two-parameter line outside."""
    line: Array = curve.latency_s + share * n_bytes / curve.bus_bytes_per_s
    if not curve.knots:
        return line
    x, y = np.array([k[0] for k in curve.knots]), np.array([k[1] for k in curve.knots])
    inside = (n_bytes >= x[0]) & (n_bytes <= x[-1])
    between = np.exp(np.interp(np.log(np.maximum(n_bytes, 1.0)), np.log(x), np.log(y)))
    below = np.where(n_bytes < x[0], y[0], np.maximum(line, y[-1]))
    return np.asarray(np.where(inside, between, below))


def _nearest(curves: tuple[CollectiveCurve, ...], ranks: float) -> tuple[CollectiveCurve, ...]:
    """The curve of this many ranks, or of the next larger measured group, or of the largest."""
    if not curves:
        return ()
    larger = [c for c in curves if c.ranks >= ranks]
    return (min(larger, key=lambda c: c.ranks),) if larger else (max(curves, key=lambda c: c.ranks),)


def _efficiency(gpu: Gpu, table: str, key: str) -> Efficiency:
    found = getattr(gpu, table).get(key)
    if found is None and key.endswith("_fp8"):
        found = getattr(gpu, table).get(key.removesuffix("_fp8"))
    if found is None:
        known = ", ".join(sorted(getattr(gpu, table))) or "none"
        raise SpecError(f"{gpu.name} has no {table} efficiency for '{key}'; its data states {known}")
    return found  # type: ignore[no-any-return]
