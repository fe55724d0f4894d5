"""Measured efficiencies of one GPU, laid over its preset.

A file is a JSON object::

    {"schema_version": 1, "gpu": "…", "source": "who measured it, when, with what",
     "gemm": {"bf16": {"compute": 0.82, "memory": 0.85}},
     "expert_gemm": {…}, "attention": {"fused": {…}},
     "collectives": {"all_reduce": [{"ranks": 8, "bus_bytes_per_s": 4.5e11, "latency_s": 1.2e-5}]}}

Everything but ``gpu`` and ``source`` is optional; what is given replaces the preset's entry of the same name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency, Gpu

_KERNELS = ("gemm", "expert_gemm", "attention")
_KEYS = ("schema_version", "gpu", "source", *_KERNELS, "collectives")


@frozen
class EfficiencyProfile:
    """A parsed, plausible file."""

    path: str
    gpu: str
    kernels: Mapping[str, Mapping[str, Efficiency]]
    collectives: Mapping[str, tuple[CollectiveCurve, ...]]


def read_profile(path: Path) -> EfficiencyProfile:
    """Read a profile.

    Raises:
        SpecError: the file is missing, is not such an object, or holds an impossible figure (it is named).
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"profile {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as e:
        raise SpecError(f"profile {path}: cannot be read: {e}") from None
    except json.JSONDecodeError as e:
        raise SpecError(f"profile {path}: is not JSON (line {e.lineno}: {e.msg})") from None
    if not isinstance(body, dict):
        raise SpecError(f"profile {path}: must be a JSON object, not {type(body).__name__}")
    if unknown := set(body) - set(_KEYS):
        raise SpecError(f"profile {path}: unknown key '{min(unknown)}'; known: {', '.join(_KEYS)}")
    if body.get("schema_version", 1) != 1:
        raise SpecError(f"profile {path}: schema_version is {body['schema_version']!r}; this version reads 1")
    for key in ("gpu", "source"):
        if not isinstance(body.get(key), str) or not body[key]:
            raise SpecError(f"profile {path}: '{key}' must be a text")
    kernels = {
        kind: {name: _efficiency(path, f"{kind}.{name}", e, body["source"]) for name, e in _table(path, body, kind).items()}
        for kind in _KERNELS
    }
    if not any(kernels.values()) and not body.get("collectives"):
        raise SpecError(f"profile {path}: holds no measurement; give one of {', '.join((*_KERNELS, 'collectives'))}")
    curves = {}
    for kind, rows in _table(path, body, "collectives").items():
        if not isinstance(rows, list):
            raise SpecError(f"profile {path}: collectives.{kind} must be a list")
        curves[kind] = tuple(_curve(path, f"collectives.{kind}[{i}]", row, body["source"]) for i, row in enumerate(rows))
    return EfficiencyProfile(str(path), body["gpu"], kernels, curves)


def apply_profile(gpu: Gpu, profile: EfficiencyProfile) -> Gpu:
    """The preset with the profile's entries in place of its own.

    Raises:
        SpecError: the profile is of another GPU, or a collective is faster than the link.
    """
    if profile.gpu.casefold() not in {n.casefold() for n in (gpu.name, *gpu.aliases)}:
        raise SpecError(f"profile {profile.path}: was measured on {profile.gpu} and cannot speak for {gpu.name}")
    for kind, curves in profile.collectives.items():
        for curve in curves:
            if curve.ranks <= gpu.scale_up_domain and curve.bus_bytes_per_s > gpu.scale_up_bytes_per_s * 2:
                raise SpecError(
                    f"profile {profile.path}: {kind} over {curve.ranks} ranks at {curve.bus_bytes_per_s:g} bytes/s is more than "
                    f"both directions of {gpu.name}'s link together ({2 * gpu.scale_up_bytes_per_s:g})"
                )
    return evolve(
        gpu,
        gemm={**gpu.gemm, **profile.kernels["gemm"]},
        expert_gemm={**gpu.expert_gemm, **profile.kernels["expert_gemm"]},
        attention={**gpu.attention, **profile.kernels["attention"]},
        collectives={**gpu.collectives, **profile.collectives},
    )


def _table(path: Path, body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = body.get(key, {})
    if not isinstance(table, dict):
        raise SpecError(f"profile {path}: '{key}' must be an object")
    return table


def _number(path: Path, where: str, row: Any, key: str, *, most: float, default: float | None = None) -> float:
    value = row.get(key, default) if isinstance(row, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= most:
        limit = f" up to {most:g}" if math.isfinite(most) else ""
        raise SpecError(f"profile {path}: {where}.{key} is {value!r}; it must be a number above 0{limit}")
    if value == 0 and default is None:
        raise SpecError(f"profile {path}: {where}.{key} is 0; it must be above 0")
    return float(value)


def _efficiency(path: Path, where: str, row: Any, source: str) -> Efficiency:
    share = {key: _number(path, where, row, key, most=1.0) for key in ("compute", "memory")}
    return Efficiency(
        **share, source=source, origin="measured", fixed_s=_number(path, where, row, "fixed_s", most=1.0, default=0.0)
    )


def _curve(path: Path, where: str, row: Any, source: str) -> CollectiveCurve:
    ranks = _number(path, where, row, "ranks", most=1e6)
    if ranks < 2 or ranks != int(ranks):
        raise SpecError(f"profile {path}: {where}.ranks is {ranks:g}; a collective has at least 2 ranks")
    bus = _number(path, where, row, "bus_bytes_per_s", most=math.inf)
    latency = _number(path, where, row, "latency_s", most=10.0, default=0.0)
    return CollectiveCurve(int(ranks), bus, latency, source, origin="measured")
