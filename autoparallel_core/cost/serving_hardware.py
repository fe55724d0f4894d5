"""The GPU, its collectives and its kernels as one serving step sees them.

Efficiencies are those measured on single operators (``Gpu.gemm``, ``expert_gemm``, ``attention``, ``collectives``), in
the form that docs/reference/gpu-data.md states. Axis legend: S points (strategies, or strategies at several loads).
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_policy import asked_format, kv_dtype
from autoparallel_core.errors import SpecError
from autoparallel_core.ops.curves import curve_for, curve_seconds
from autoparallel_core.ops.ledger import note
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency, Gpu
from autoparallel_core.spec.dtypes import dtype_bytes
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.quantization import WeightFormat

Array = NDArray[np.float64]

PLAIN = ("bf16", "fp16")
WEIGHT_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "fp4": 0.5625, "int8": 1.0, "int8_wo": 1.0, "int4_wo": 0.5, "fp32": 4.0}
"""Stored bytes of a weight by GEMM key, as measured points count them."""


@frozen
class Kernel:
    """One measured kernel class: its efficiency and the peak that it is a share of."""

    efficiency: Efficiency
    peak_flops: float
    dtype: str
    """Of the operands that the matrix units multiply."""
    key: str = ""
    """Its name in the GPU's data."""

    @property
    def casts(self) -> bool:
        """Activations are cast to the operands' dtype first."""
        return self.dtype not in (*PLAIN, "fp32")


@define(eq=False, slots=False)
class ServingHardware:
    """Seconds of operators at serving shapes; arrays of S throughout."""

    problem: Problem

    @property
    def gpu(self) -> Gpu:
        return self.problem.cluster.gpu

    @cached_property
    def kv_bytes(self) -> float:
        """Bytes per element of the KV cache."""
        return dtype_bytes(kv_dtype(self.problem))

    @cached_property
    def peak_16bit(self) -> float:
        """Matrix units in 16 bit; old GPUs have fp16 only."""
        return self.gpu.peak("bf16" if "bf16" in self.gpu.peak_flops else "fp16")

    @cached_property
    def fp32(self) -> bool:
        """The whole model is asked to run in 32 bit."""
        return asked_format(self.problem) == "fp32"

    @cached_property
    def peak_plain(self) -> float:
        """Of unquantised work: in 32 bit the GPU's own rate for it, else that of 16 bit.

        Raises:
            SpecError: 32 bit is asked for and the GPU states no rate.
        """
        return self.gpu.peak("fp32") if self.fp32 else self.peak_16bit

    @cached_property
    def launch_s(self) -> float:
        """Fixed time of the plainest kernel, a 16-bit GEMM."""
        return next((self.gpu.gemm[k].fixed_s for k in ("bf16", "fp16") if k in self.gpu.gemm), 0.0)

    def kernel(self, table: str, fmt: WeightFormat) -> Kernel:
        """The kernel that reads weights of this format: one measured on this GPU before one assumed from another GPU.

        A format whose operands the GPU's matrix units lack is computed in 16 bit (weight-only).
        """
        known = getattr(self.gpu, table)
        usable = [k for k in _keys(fmt) if k in known and (_dtype(k) in self.gpu.peak_flops or _dtype(k) in PLAIN)]
        if not usable:
            raise SpecError(f"{self.gpu.name} has no {table} efficiency for '{fmt.name}'; its data states {_names(known)}")
        key = next((k for k in usable if known[k].origin != "assumed"), usable[0])
        if self.fp32:  # the share of the peak that 16-bit kernels reach, of the rate of 32 bit; no table was measured in it
            return Kernel(known[key], self.peak_plain, "fp32", "fp32")
        peak = self.peak_16bit if _dtype(key) in PLAIN else self.gpu.peak(_dtype(key))
        return Kernel(known[key], peak, _dtype(key), key)

    def operand_bytes(self, fmt: WeightFormat) -> float:
        """Bytes per activation that an expert's kernel takes, with its scales."""
        return {"fp8": 1.0, "int8": 1.0, "fp4": 0.5 + 1.0 / 16, "fp32": 4.0}.get(self.kernel("expert_gemm", fmt).dtype, 2.0)

    def gemm_s(self, m: Array, n: Array, k: Array, fmt: WeightFormat) -> Array:
        """Launch, plus the root sum of squares of compute and memory time: the two overlap, but not at the ridge.

        The activations of low-precision products are cast by a kernel of their own, which engines time and place
        differently from the tables: its time is one constant, and the tables' fixed time is not used.
        """
        kernel = self.kernel("gemm", fmt)
        e = kernel.efficiency
        work = 2.0 * m * n * k / (kernel.peak_flops * e.compute)
        activation_bytes = 4.0 if self.fp32 else 2.0
        moved = (n * k * fmt.bytes_per_param + activation_bytes * m * (k + n)) / (self.gpu.hbm_bytes_per_s * e.memory)
        cast = self.problem.constant("serving_cast_s") if kernel.casts else 0.0
        return cast + self._as_measured(f"gemm.{kernel.key}", "gemm", kernel, self.launch_s + np.hypot(work, moved), m, n, k)

    def _as_measured(self, name: str, kind: str, kernel: Kernel, modelled: Array, m: Array, n: Array, k: Array) -> Array:
        """The modelled seconds with the deviation that measured neighbours show, never below the peak."""
        points = self.gpu.tables.get(name)
        if points is None:
            return modelled

        def form(m: Array, n: Array, k: Array) -> Array:
            e, width = kernel.efficiency, WEIGHT_BYTES.get(kernel.key, 2.0)
            moved = (n * k * width + 2.0 * m * (k + n)) / (self.gpu.hbm_bytes_per_s * e.memory)
            return e.fixed_s + np.hypot(2.0 * m * n * k / (kernel.peak_flops * e.compute), moved)

        ratio, marks = points.deviation(form, m, n, k, absolute=True)
        out: Array = np.maximum(modelled * ratio, 2.0 * m * n * k / kernel.peak_flops)
        note(kind, out, marks)
        return out

    def expert_s(self, visits: Array, touched: Array, n: Array, k: Array, fmt: WeightFormat) -> Array:
        """Grouped GEMM: every touched expert is read whole and computes whole tiles of rows. Without its fixed time."""
        kernel = self.kernel("expert_gemm", fmt)
        e = kernel.efficiency
        rows = visits + self.problem.constant("serving_expert_tile_rows") * touched
        work = 2.0 * rows * n * k / (kernel.peak_flops * e.compute)
        activation_bytes = 4.0 if self.fp32 else 2.0
        moved = (touched * n * k * fmt.bytes_per_param + activation_bytes * visits * (k + n)) / (
            self.gpu.hbm_bytes_per_s * e.memory
        )
        return np.hypot(work, moved)

    def expert_fixed_s(self, fmt: WeightFormat) -> float:
        """Fixed time of both grouped GEMMs and what is between them; an engine may state its own kernel's."""
        own = f"serving_expert_fixed_s:{_family(fmt)}:{self.gpu.architecture.lower()}"
        if own in self.problem.constants:
            return self.problem.constant(own)
        return self.kernel("expert_gemm", fmt).efficiency.fixed_s

    def attention_s(self, key: str, flops: Array, moved: Array) -> Array:
        """One attention call; ``key`` of ``Gpu.attention``, the engine's own kernel (``key@engine``) before that of any engine.

        ``_fp8`` falls back to 16 bit. An engine's kernel assumed from another GPU yields to one measured on this GPU.
        """
        known, plain = self.gpu.attention, key.removesuffix("_fp8")
        usable = [k for base in (key, plain) for k in (f"{base}@{self.problem.engine.name}", base) if k in known]
        if not usable:
            raise SpecError(f"{self.gpu.name} has no attention efficiency for '{key}'; its data states {_names(known)}")
        chosen = next((k for k in usable if known[k].origin != "assumed"), usable[0])
        e = known[chosen]
        peak = self.gpu.peak("fp8") if chosen.startswith("prefill_fp8") else self.peak_plain

        def form(flops: Array, moved: Array) -> Array:
            return np.asarray(e.fixed_s + np.hypot(flops / (peak * e.compute), moved / (self.gpu.hbm_bytes_per_s * e.memory)))

        points = None if self.fp32 else self.gpu.tables.get(f"attention.{chosen}")
        if points is None:
            return form(flops, moved)
        ratio, marks = points.deviation(form, flops, moved, absolute=True)
        out: Array = np.maximum(form(flops, moved) * ratio, np.maximum(flops / peak, moved / self.gpu.hbm_bytes_per_s))
        note("attention", np.where(moved > 0, out, 0.0), marks)
        return out

    def stream_s(self, moved: Array | float) -> Array:
        """Reading and writing memory in order."""
        return np.asarray(moved / (self.gpu.hbm_bytes_per_s * self.problem.constant("serving_stream_share")))

    def collective_s(self, kind: str, n_bytes: Array, ranks: Array) -> Array:
        """Time of a collective among ``ranks`` neighbouring GPUs; across scale-up domains at the NIC's rate unless measured."""
        out = np.zeros(np.broadcast(n_bytes, ranks).shape)
        n_bytes, ranks = np.broadcast_to(n_bytes, out.shape), np.broadcast_to(ranks, out.shape)
        domain = self.problem.cluster.tiers[0].ranks
        for r in np.unique(ranks):
            rows = ranks == r
            if r > 1:
                # a measured curve of more ranks than the fabric joins was taken across the network
                measured = any(c.ranks >= r for c in self.gpu.collectives.get(kind, ()))
                price = self._inside if r <= domain or (measured and domain >= self.gpu.scale_up_domain) else self._across
                out[rows] = price(kind, n_bytes[rows], int(r))
        return out

    def hop_s(self, n_bytes: Array, span: Array) -> Array:
        """Sending to the next pipeline stage of an instance of ``span`` GPUs: over the network once it leaves the domain."""
        tiers, c = self.problem.cluster.tiers, self.problem.constant
        inside = max(tiers[0].latency_s, c("serving_collective_s")) + n_bytes / tiers[0].bytes_per_s
        rate = tiers[-1].bytes_per_s * c("scale_out_efficiency")
        across = max(tiers[-1].latency_s, c("scale_out_latency_s")) + n_bytes / rate
        return np.where(span <= tiers[0].ranks, inside, across)

    def _inside(self, kind: str, n_bytes: Array, ranks: int) -> Array:
        """The fastest measured implementation; the link's rate where nothing is measured."""
        own = f"{kind}_custom@{self.problem.engine.name}"
        kinds = (kind, own if own in self.gpu.collectives else f"{kind}_custom", f"{kind}_low_latency")
        found = [(k, c) for k in kinds if (c := curve_for(self.gpu, k, ranks))]
        if found:
            times = np.array([curve_seconds(c, k, n_bytes) for k, c in found])
            self._note_collective(kind, times, found, n_bytes)
            return np.asarray(np.min(times, axis=0))
        link = self.problem.cluster.tiers[0]
        share = (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1) / ranks
        return np.asarray(max(link.latency_s, self.problem.constant("serving_collective_s")) + share * n_bytes / link.bytes_per_s)

    def _note_collective(self, kind: str, times: Array, found: list[tuple[str, CollectiveCurve]], n_bytes: Array) -> None:
        """Tell the ledger when the fastest implementation is one that the user measured."""
        name, curve = found[int(np.argmin(times.sum(axis=tuple(range(1, times.ndim)))))]
        points = self.gpu.tables.get(f"collectives.{name}.{curve.ranks}")
        if points is not None:
            note("all_reduce" if kind == "all_reduce" else "all_to_all", times.min(axis=0), points.marks(n_bytes))

    def _across(self, kind: str, n_bytes: Array, ranks: int) -> Array:
        """Hierarchical: inside the domain, then between domains over all of its NICs."""
        outer, domain = self.problem.cluster.tiers[-1], self.problem.cluster.tiers[0].ranks
        inner = self._inside(kind, n_bytes, domain) if domain > 1 else np.zeros_like(n_bytes)
        nodes = ranks / domain
        share = (nodes - 1) / nodes * (2.0 if kind == "all_reduce" else 1.0)
        rate = outer.bytes_per_s * self.problem.constant("scale_out_efficiency")
        spread = 1.0 if kind in ("dispatch", "combine", "all_to_all") else float(domain)
        hops = np.ceil(np.log2(max(nodes, 2.0)))
        wait = hops * max(outer.latency_s, self.problem.constant("scale_out_latency_s"))
        return np.asarray(inner + share * n_bytes / spread / rate + wait)


def _keys(fmt: WeightFormat) -> tuple[str, ...]:
    """Keys of ``Gpu.gemm`` and ``expert_gemm`` that can read a format, best first."""
    name = fmt.name.removesuffix("_weight_only")
    if name.startswith("mxfp4"):
        own: tuple[str, ...] = ("mxfp4_fp8", "mxfp4_wo")
    elif fmt.compute == "bf16" and fmt.bytes_per_param < 0.8:
        own = ("int4_wo",)
    elif fmt.compute == "bf16" and fmt.bytes_per_param < 1.5:
        own = ("int8_wo",)
    elif name.startswith("fp8_block"):
        own = ("fp8_block",)
    else:
        own = ()
    return (*own, fmt.compute, "bf16", "fp16")


def _family(fmt: WeightFormat) -> str:
    """The format without block and group sizes."""
    return re.sub(r"(_block\d+|_g-?\d+z?)$", lambda m: "_block" if m[0].startswith("_block") else "", fmt.name)


def _dtype(key: str) -> str:
    """The operand dtype whose peak an efficiency is a share of."""
    if key.endswith("_wo"):
        return "bf16"
    return "fp8" if key in ("fp8_block", "mxfp4_fp8") else key


def _names(known: object) -> str:
    return ", ".join(sorted(known)) or "none"  # type: ignore[call-overload]
