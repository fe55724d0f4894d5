"""Plausibility of GPU figures: wrong units, marketing figures and missing sources show as figures out of range.

Ranges span the accelerators of 2017 to 2026 with a margin; they catch a GB written as a byte or a Tb/s as TB/s, not
a wrong last digit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoparallel_core.spec.cluster import Efficiency, Gpu

RANGES: Mapping[str, tuple[float, float]] = {
    "memory_bytes": (4e9, 2e12),
    "marketing_memory_bytes": (4e9, 2e12),
    "hbm_bytes_per_s": (1e11, 1e14),
    "scale_up_bytes_per_s": (1e9, 1e13),
    "scale_up_domain": (1, 1024),
    "nic_bytes_per_s": (1e8, 1e12),
    "gpus_per_node": (1, 1024),
    "host_memory_bytes_per_node": (1e10, 1e14),
}
"""SI units: bytes, bytes per second and direction, GPUs."""

PEAKS: Mapping[str, tuple[float, float]] = {
    "fp32": (1e12, 1e16),
    "tf32": (1e12, 1e16),
    "bf16": (1e13, 1e17),
    "fp16": (1e13, 1e17),
    "fp8": (1e13, 2e17),
    "int8": (1e13, 2e17),
    "fp4": (1e13, 5e17),
}
"""Dense FLOP/s (or operations per second) by dtype."""

MEMORY_OVER_MARKETING = (0.85, 1.08)
"""What the driver shows over what the page says: ECC and reserves take some, a "GB" that means GiB adds 7%."""
FLOPS_PER_BYTE = (20.0, 3000.0)
"""16-bit peak over memory bandwidth."""
BEYOND_LINK = {"all_reduce": 2.0, "dispatch": 2.0, "combine": 2.0}
"""Collectives whose accounted bytes exceed those on the wire: reduced inside the switch, or sent once for several experts."""
ORIGINS = ("preset", "measured", "vendor", "fitted", "assumed")


def gpu_complaints(gpu: Gpu) -> list[str]:
    """Everything implausible about a preset, a sentence each; empty when there is nothing."""
    return [f"{gpu.name}: {c}" for c in (*_figures(gpu), *_peaks(gpu), *_efficiencies(gpu), *_collectives(gpu), *_sources(gpu))]


def _figures(gpu: Gpu) -> Iterator[str]:
    for name, (low, high) in RANGES.items():
        if not low <= getattr(gpu, name) <= high:
            yield f"{name} is {getattr(gpu, name):g}, outside {low:g} to {high:g}"
    low, high = MEMORY_OVER_MARKETING
    if not low <= gpu.memory_bytes / gpu.marketing_memory_bytes <= high:
        yield f"memory_bytes is {gpu.memory_bytes / gpu.marketing_memory_bytes:.2f} of marketing_memory_bytes"
    if not gpu.name.strip() or not gpu.vendor.strip():
        yield "name and vendor must not be empty"


def _peaks(gpu: Gpu) -> Iterator[str]:
    for dtype, peak in gpu.peak_flops.items():
        if dtype not in PEAKS:
            yield f"peak_flops has the dtype '{dtype}'; known: {', '.join(PEAKS)}"
        elif not PEAKS[dtype][0] <= peak <= PEAKS[dtype][1]:
            yield f"peak_flops[{dtype}] is {peak:g}, outside {PEAKS[dtype][0]:g} to {PEAKS[dtype][1]:g}"
    half = max(gpu.peak_flops.get("bf16", 0.0), gpu.peak_flops.get("fp16", 0.0))
    if not half:
        yield "peak_flops has neither bf16 nor fp16"
        return
    if not FLOPS_PER_BYTE[0] <= half / gpu.hbm_bytes_per_s <= FLOPS_PER_BYTE[1]:
        yield f"16-bit peak over memory bandwidth is {half / gpu.hbm_bytes_per_s:.0f} FLOPs per byte"
    for wide, narrow in (("fp32", "bf16"), ("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")):
        if gpu.peak_flops.get(wide, 0.0) > gpu.peak_flops.get(narrow, float("inf")):
            yield f"peak_flops[{wide}] exceeds peak_flops[{narrow}]"


def _efficiencies(gpu: Gpu) -> Iterator[str]:
    tables: tuple[tuple[str, Mapping[str, Efficiency]], ...] = (
        ("gemm", gpu.gemm),
        ("expert_gemm", gpu.expert_gemm),
        ("attention", gpu.attention),
    )
    for table, rows in tables:
        for key, e in rows.items():
            where = f"{table}[{key}]"
            if not (0 < e.compute <= 1 and 0 < e.memory <= 1):
                yield f"{where} reaches {e.compute:g} of the peak and {e.memory:g} of the bandwidth; both must be in (0, 1]"
            if not 0 <= e.fixed_s <= 1e-3:
                yield f"{where}.fixed_s is {e.fixed_s:g} s, outside 0 to 1 ms"
            if not e.source.strip() or e.origin not in ORIGINS:
                yield f"{where} needs a source, and an origin of {', '.join(ORIGINS)}"
    for key, value in gpu.training.items():
        if key.startswith(("gemm_", "attention_")) and not 0 < value <= 1:
            yield f"training[{key}] is {value:g}, a share of the peak in (0, 1]"


def _collectives(gpu: Gpu) -> Iterator[str]:
    for kind, curves in gpu.collectives.items():
        for c in curves:
            where = f"collectives[{kind}] of {c.ranks} ranks"
            limit = gpu.scale_up_bytes_per_s * next((f for k, f in BEYOND_LINK.items() if kind.startswith(k)), 1.1)
            if c.ranks < 2 or not 0 < c.bus_bytes_per_s <= limit:
                yield f"{where}: {c.bus_bytes_per_s:g} bytes/s on a link of {gpu.scale_up_bytes_per_s:g}"
            if not 0 <= c.latency_s <= 1e-2:
                yield f"{where}: latency {c.latency_s:g} s, outside 0 to 10 ms"
            if not c.source.strip() or c.origin not in ORIGINS:
                yield f"{where} needs a source, and an origin of {', '.join(ORIGINS)}"


def _sources(gpu: Gpu) -> Iterator[str]:
    needed = [*RANGES, "peak_flops", *(f"training.{k}" for k in gpu.training), *(f"serving.{k}" for k in gpu.serving)]
    for name in needed:
        if not gpu.sources.get(name, "").strip():
            yield f"no source for {name} (write 'assumed: why' for what nobody states)"
