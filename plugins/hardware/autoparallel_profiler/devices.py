"""The machine at hand: what kind of device, what it is called, which preset it is, and a CPU's own figures."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import did_you_mean
from autoparallel_core.spec.cluster import Gpu

_MEMORY_TOLERANCE = 0.08
"""Presets state what the driver shows; the rest is a reserved region."""
_BOARDS = ("pcie", "nvl")
_TURBO = 1.5
"""Clock over the one that a virtual machine shows, at most: the bound must not be below the truth."""


@frozen
class Device:
    """What is measured."""

    kind: str
    """cuda (also ROCm) or cpu."""
    name: str
    count: int
    memory_bytes: float
    driver: str
    libraries: Mapping[str, str]
    architecture: str = ""


def require_torch() -> Any:
    """The torch module. Raises SpecError when it is not installed."""
    try:
        import torch
    except ImportError:
        raise SpecError(
            "measuring needs PyTorch, which is not installed here (pip install 'autoparallel-advisor[torch]')"
        ) from None
    return torch


def find_device(asked: str | None) -> Device:
    """The accelerator, or the CPU when there is none or it is asked for.

    Raises:
        SpecError: torch is missing, or sees no accelerator although one was asked for.
    """
    torch = require_torch()
    available = bool(torch.cuda.is_available())
    if asked == "cuda" and not available:
        raise SpecError("--device cuda: torch sees no CUDA or ROCm device here; --device cpu measures the processor")
    libraries = {"torch": str(torch.__version__)}
    if asked == "cpu" or not available:
        name = cpu_name()
        return Device("cpu", name, len(_cores()), _host_memory_bytes(), platform.release(), libraries, platform.machine())
    props = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        libraries["rocm"] = str(torch.version.hip)
        driver = _text(Path("/sys/module/amdgpu/version"))
    else:
        libraries["cuda"] = str(torch.version.cuda)
        driver = _command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    version = getattr(torch.cuda, "nccl", None)
    if version is not None:
        libraries["nccl"] = ".".join(map(str, version.version()))
    arch = getattr(props, "gcnArchName", "") or f"sm_{props.major}{props.minor}"
    return Device("cuda", props.name, torch.cuda.device_count(), float(props.total_memory), driver, libraries, arch)


def preset_of(device: Device, gpus: Iterable[Gpu], wanted: Gpu | None) -> Gpu | None:
    """The preset that the device is; None for a CPU, which describes itself.

    Raises:
        SpecError: no preset, or more than one, fits the device's name and memory; or the wanted one has other memory.
    """
    if wanted is not None:
        if device.kind == "cuda" and abs(device.memory_bytes / wanted.memory_bytes - 1) > 2 * _MEMORY_TOLERANCE:
            have, want = device.memory_bytes / 2**30, wanted.memory_bytes / 2**30
            raise SpecError(
                f"this {device.name} has {have:.1f} GiB and --gpu-type {wanted.name} has {want:.1f}: not the same GPU"
            )
        return wanted
    if device.kind == "cpu":
        return None
    chips, boards = _words_of(device.name)
    fitting = [
        g
        for g in gpus
        if abs(device.memory_bytes / g.memory_bytes - 1) < _MEMORY_TOLERANCE and boards == _words_of(g.name)[1]
        if any(chips & _words_of(n)[0] for n in (g.name, *g.aliases))
    ]
    fitting = [g for g in fitting if chips & _words_of(g.name)[0]] or fitting
    if len(fitting) == 1:
        return fitting[0]
    names = [g.name for g in gpus]
    which = f"{' and '.join(g.name for g in fitting)} both fit it" if fitting else did_you_mean(device.name, names)
    raise SpecError(f"no preset is certainly this {device.name}; say which with --gpu-type: {which}")


def _words_of(name: str) -> tuple[set[str], set[str]]:
    """Chip names (letters and digits) in a GPU's name, and the kind of board where it is not the usual module."""
    folded = name.casefold()
    return set(re.findall(r"(?!sxm|hbm)\b[a-z]+\d+[a-z]*|\b\d{3,}[a-z]*", folded)), {b for b in _BOARDS if b in folded}


# -- the CPU ------------------------------------------------------------------------------------------------------------


def cpu_name() -> str:
    """``cpu-`` and what the processor calls itself, with its cores."""
    found = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), flags=re.MULTILINE)
    brand = found[1] if found else platform.processor() or platform.machine()
    words = re.sub(r"\(R\)|\(TM\)|\bCPU\b|\bProcessor\b|@.*$", " ", brand)
    return f"cpu-{'-'.join(re.findall(r'[A-Za-z0-9.]+', words)).lower()}-{len(_cores())}-cores"


def cpu_peak_flops(threads: int) -> tuple[dict[str, float], str]:
    """Upper bounds of dense FLOP/s by dtype for so many cores, from the vector units and the clock, and their source.

    Two vector pipes per core are assumed; matrix extensions do 16 rows of 64 bytes per tile instruction and 16 cycles.
    """
    info = _text(Path("/proc/cpuinfo"))
    flags = set(re.search(r"^(?:flags|Features)\s*:\s*(.*)$", info, flags=re.MULTILINE)[1].split()) if "flags" in info else set()  # type: ignore[index]
    lanes = 16 if "avx512f" in flags else 8 if "avx2" in flags else 4
    fp32 = lanes * 2 * 2
    bf16 = 2048 if "amx_bf16" in flags else 2 * fp32 if flags & {"avx512_bf16", "avx_ne_convert", "bf16"} else fp32
    highest = _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")).strip()
    shown = re.search(r"^cpu MHz\s*:\s*([\d.]+)", info, flags=re.MULTILINE)
    hertz = float(highest) * 1e3 if highest.isdigit() else (float(shown[1]) * 1e6 * _TURBO if shown else 4e9)
    cores = f"{threads} core{'s' if threads > 1 else ''}"
    how = f"upper bound: {cores} at {hertz / 1e9:.2f} GHz, {fp32} fp32 and {bf16} bf16 FLOP a cycle"
    rate = threads * hertz
    return {"fp32": rate * fp32, "bf16": rate * bf16, "fp16": rate * bf16}, how


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _host_memory_bytes() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _command(*words: str) -> str:
    program = shutil.which(words[0])
    if program is None:
        return ""
    done = subprocess.run([program, *words[1:]], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""
