"""What a user knows better than the preset: figures of a GPU replaced by flag or file, recorded for the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import evolve, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.gpu_files import scale_collectives
from autoparallel_core.naming import did_you_mean
from autoparallel_core.spec.cluster import Gpu


@frozen
class _Override:
    unit: float
    """What a bare number stands for."""
    shown: str
    figure: str
    """The field of Gpu whose source becomes the user."""
    apply: Callable[[Gpu, float], Gpu]


def _memory(gpu: Gpu, value: float) -> Gpu:
    return evolve(gpu, memory_bytes=value)


def _host_memory(gpu: Gpu, value: float) -> Gpu:
    return evolve(gpu, host_memory_bytes_per_node=value)


def _flops(gpu: Gpu, value: float) -> Gpu:
    """The given 16-bit peak; the other dtypes keep their ratio to it."""
    ratio = value / gpu.peak("bf16" if "bf16" in gpu.peak_flops else "fp16")
    return evolve(gpu, peak_flops={dtype: peak * ratio for dtype, peak in gpu.peak_flops.items()})


def _hbm(gpu: Gpu, value: float) -> Gpu:
    return evolve(gpu, hbm_bytes_per_s=value)


def _scale_up(gpu: Gpu, value: float) -> Gpu:
    """The given link; measured bus bandwidths scale with it, latencies stay."""
    ratio = value / gpu.scale_up_bytes_per_s
    training = {k: v * ratio if k == "all_reduce_bytes_per_s" else v for k, v in gpu.training.items()}
    curves = scale_collectives(gpu, scale_up=ratio, why="for the link given")
    host_link = gpu.host_link_bytes_per_s
    if gpu.scale_up_domain == 1 and host_link is not None:
        host_link *= ratio
    return evolve(gpu, scale_up_bytes_per_s=value, host_link_bytes_per_s=host_link, training=training, collectives=curves)


def _nic(gpu: Gpu, value: float) -> Gpu:
    curves = scale_collectives(gpu, nic=value / gpu.nic_bytes_per_s, why="for the NIC given")
    return evolve(gpu, nic_bytes_per_s=value, collectives=curves)


_OVERRIDES: Mapping[str, _Override] = {
    "gpu_memory_gb": _Override(1e9, "GB", "memory_bytes", _memory),
    "host_memory_gb": _Override(1e9, "GB per node", "host_memory_bytes_per_node", _host_memory),
    "gpu_flops": _Override(1e12, "TFLOP/s dense 16-bit, other dtypes in proportion", "peak_flops", _flops),
    "hbm_gb_per_s": _Override(1e9, "GB/s", "hbm_bytes_per_s", _hbm),
    "bw_nvlink": _Override(1e9, "GB/s per GPU and direction", "scale_up_bytes_per_s", _scale_up),
    "bw_ib": _Override(1e9, "GB/s per GPU and direction", "nic_bytes_per_s", _nic),
}
_SI_FROM = 1e9
"""A number from here on is in SI base units: no device has 10⁹ of the units above."""
_UNIT_UP_TO = 1e6
_GPU_MEMORY_UP_TO = 4e12
_DOUBTS: Mapping[str, tuple[float, str]] = {
    "bw_nvlink": (2.0, "data sheets add both directions"),
    "bw_ib": (8.0, "a NIC of 400 Gb/s carries 50 GB/s"),
}
"""The factor to the preset's figure that a common mistake makes, and what the mistake is."""


def override(gpu: Gpu, key: str, value: float) -> tuple[Gpu, str]:
    """The GPU with one figure replaced, and the replacement as the output shows it.

    Raises:
        SpecError: an unknown key (with the near ones), a value that is not positive or in no plausible unit.
    """
    if key not in _OVERRIDES:
        raise SpecError(f"unknown override '{key}'; {did_you_mean(key, _OVERRIDES)}")
    o = _OVERRIDES[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise SpecError(f"{key} must be greater than 0 {o.shown}, not {value!r}")
    if _UNIT_UP_TO < value < _SI_FROM:
        raise SpecError(f"{key} of {value:g} is neither a plausible number of {o.shown} nor of SI base units")
    si = float(value) if value >= _SI_FROM else float(value) * o.unit
    if key == "gpu_memory_gb" and si > _GPU_MEMORY_UP_TO:
        raise SpecError(
            f"{key} of {si / 1e9:,.0f} GB is more than any GPU has; drivers count in MiB: {si / 1e9:.0f} MiB would be "
            f"{si / 1e9 * 2**20 / 1e9:.1f} GB"
        )
    shown = f"{key}={si / o.unit:g} {o.shown}{_doubt(gpu, key, si)}"
    if key in ("gpu_memory_gb", "host_memory_gb"):
        shown += f" ({si / 2**30:.4g} GiB)"
    changed = o.apply(gpu, si)
    return evolve(changed, sources={**changed.sources, o.figure: "given by the user"}), shown


def _doubt(gpu: Gpu, key: str, si: float) -> str:
    """A remark where a link is given at just the multiple of the preset's that a common mistake makes; else nothing."""
    if key not in _DOUBTS:
        return ""
    factor, mistake = _DOUBTS[key]
    preset = gpu.scale_up_bytes_per_s if key == "bw_nvlink" else gpu.nic_bytes_per_s
    if abs(si / preset - factor) > 0.05 * factor:
        return ""
    return f" ({factor:g} times the preset's {preset / 1e9:g}: {mistake})"
