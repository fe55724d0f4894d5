"""Profile files: reading (strict), writing, and the user's cache. docs/reference/profile-schema.md is the format."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cattrs
from attrs import asdict, field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.json_file import read_json_file
from autoparallel_core.naming import did_you_mean
from autoparallel_core.profiles.tables import TABLES, Provenance, Table, table_of
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency, Gpu
from autoparallel_core.strict import strict_converter

SCHEMA_VERSION = 1
KERNELS = ("gemm", "expert_gemm", "attention")
_HEAD = ("schema_version", "gpu", "source", "provenance", "device", "complete")
_KEYS = (*_HEAD, *TABLES)


@frozen(eq=False)
class Profile:
    """A parsed file. ``tables`` hold measured points, ``kernels`` and ``curves`` efficiencies that the file states itself."""

    gpu: str
    """Name or alias of the GPU that it speaks for."""
    provenance: Provenance
    tables: Mapping[str, Table] = field(factory=dict)
    kernels: Mapping[str, Mapping[str, Efficiency]] = field(factory=dict)
    curves: Mapping[str, tuple[CollectiveCurve, ...]] = field(factory=dict)
    device: Gpu | None = None
    """The device's own figures, for one that no plugin knows."""
    complete: bool = True
    """False: the measurement was interrupted, or its time was up."""
    path: str = ""

    @property
    def rows(self) -> int:
        return sum(len(t) for t in self.tables.values())


def read_profile(path: Path) -> Profile:
    """Read a profile file.

    Raises:
        SpecError: the file is missing, is not such an object, or holds an impossible figure (the entry is named).
    """
    where = f"profile {path}"
    return parse_profile(read_json_file(path, where), where, str(path))


def parse_profile(body: Any, where: str, path: str = "") -> Profile:
    """A profile from its JSON object; ``where`` heads every message. Raises SpecError."""
    if not isinstance(body, dict):
        raise SpecError(f"{where}: must be a JSON object, not {type(body).__name__}")
    for key in body:
        if key not in _KEYS:
            raise SpecError(f"{where}: unknown key '{key}'; {did_you_mean(key, _KEYS)}")
    if body.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise SpecError(f"{where}: schema_version is {body['schema_version']!r}; this version reads {SCHEMA_VERSION}")
    if not isinstance(body.get("gpu"), str) or not body["gpu"]:
        raise SpecError(f"{where}: 'gpu' must be a text")
    provenance = _provenance(body, where)
    tables: dict[str, Table] = {}
    kernels: dict[str, dict[str, Efficiency]] = {}
    curves: dict[str, tuple[CollectiveCurve, ...]] = {}
    for key in TABLES:
        raw = body.get(key)
        if raw is None or raw in ([], {}):
            continue
        if isinstance(raw, list) or (isinstance(raw, dict) and "seconds" in raw):
            tables[key] = table_of(key, raw, where)
        elif not isinstance(raw, dict):
            raise SpecError(f"{where}: '{key}' must be an object or a list of rows")
        elif key in KERNELS:
            kernels[key] = {name: _efficiency(where, f"{key}.{name}", e, provenance.sentence) for name, e in raw.items()}
        elif key == "collectives":
            curves = {kind: _curves(where, kind, rows, provenance.sentence) for kind, rows in raw.items()}
        else:
            raise SpecError(f"{where}: '{key}' lacks the column 'seconds'")
    if not tables and not kernels and not curves:
        raise SpecError(f"{where}: holds no measurement; give one of {', '.join(TABLES)}")
    complete = body.get("complete", True)
    if not isinstance(complete, bool):
        raise SpecError(f"{where}: 'complete' must be true or false, not {complete!r}")
    return Profile(body["gpu"], provenance, tables, kernels, curves, _device(body, where), complete, path)


def document(profile: Profile) -> dict[str, Any]:
    """The JSON object of a profile: tables as columns."""
    out: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "gpu": profile.gpu,
        "complete": profile.complete,
        "provenance": {k: v for k, v in asdict(profile.provenance).items() if v},
    }
    if profile.device is not None:
        plain = asdict(profile.device, recurse=False)
        stated = {k: v for k, v in plain.items() if v not in (None, {}, (), "") and k not in {"default", "tables", "replaced"}}
        out["device"] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in stated.items()}
    for name, table in profile.tables.items():
        columns = {c: v.tolist() for c, v in table.columns.items()}
        if not any(columns["spread"]):
            del columns["spread"]
        out[name] = columns
    return out


def write_profile(profile: Profile, path: Path) -> None:
    """Write a file that :func:`read_profile` accepts; an existing one is replaced whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(document(profile), allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/autoparallel/profiles``, by default under ``~/.cache`` (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "autoparallel" / "profiles"


def cache_file(gpu: str) -> Path:
    """Where the user's own measurements of a GPU are kept."""
    return cache_directory() / f"{re.sub(r'[^a-z0-9.]+', '-', gpu.casefold()).strip('-')}.json"


def cached_profile(gpu: Gpu) -> Profile | None:
    """The user's profile of a GPU, under its name or an alias. Raises SpecError when there is one and it is broken."""
    for name in (gpu.name, *gpu.aliases):
        file = cache_file(name)
        if file.is_file():
            return read_profile(file)
    return None


def _provenance(body: Mapping[str, Any], where: str) -> Provenance:
    raw, source = body.get("provenance"), body.get("source")
    if raw is None:
        if not isinstance(source, str) or not source:
            raise SpecError(f"{where}: 'source' must be a text (or give 'provenance')")
        return Provenance(source)
    try:
        given = {"source": source or "measured", **raw} if isinstance(raw, dict) else raw
        found = strict_converter().structure(given, Provenance)
    except (cattrs.BaseValidationError, TypeError) as e:
        reason = "; ".join(cattrs.transform_error(e)) if isinstance(e, cattrs.BaseValidationError) else str(e)
        raise SpecError(f"{where}: provenance: {reason}") from e
    return found


def _device(body: Mapping[str, Any], where: str) -> Gpu | None:
    if body.get("device") is None:
        return None
    try:
        return strict_converter().structure({"name": body["gpu"], **body["device"]}, Gpu)
    except (cattrs.BaseValidationError, TypeError) as e:
        reason = "; ".join(cattrs.transform_error(e)) if isinstance(e, cattrs.BaseValidationError) else str(e)
        raise SpecError(f"{where}: device: {reason}") from e


def _number(where: str, entry: str, row: Any, key: str, *, most: float, default: float | None = None) -> float:
    value = row.get(key, default) if isinstance(row, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= most:
        limit = f" up to {most:g}" if math.isfinite(most) else ""
        raise SpecError(f"{where}: {entry}.{key} is {value!r}; it must be a number above 0{limit}")
    if value == 0 and default is None:
        raise SpecError(f"{where}: {entry}.{key} is 0; it must be above 0")
    return float(value)


def _efficiency(where: str, entry: str, row: Any, source: str) -> Efficiency:
    share = {key: _number(where, entry, row, key, most=1.0) for key in ("compute", "memory")}
    fixed = _number(where, entry, row, "fixed_s", most=1.0, default=0.0)
    return Efficiency(**share, source=source, origin="measured", fixed_s=fixed)


def _curves(where: str, kind: str, rows: Any, source: str) -> tuple[CollectiveCurve, ...]:
    if not isinstance(rows, list):
        raise SpecError(f"{where}: collectives.{kind} must be a list")
    out = []
    for i, row in enumerate(rows):
        entry = f"collectives.{kind}[{i}]"
        ranks = _number(where, entry, row, "ranks", most=1e6)
        if ranks < 2 or ranks != int(ranks):
            raise SpecError(f"{where}: {entry}.ranks is {ranks:g}; a collective has at least 2 ranks")
        bus = _number(where, entry, row, "bus_bytes_per_s", most=math.inf)
        latency = _number(where, entry, row, "latency_s", most=10.0, default=0.0)
        out.append(CollectiveCurve(int(ranks), bus, latency, source, origin="measured"))
    return tuple(out)
