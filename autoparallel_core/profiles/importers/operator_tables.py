"""Operator tables as the aiconfigurator package ships them (parquet, or CSV text in older releases), read directly.

Layout: ``systems/data/SYSTEM/OPERATOR/FRAMEWORK/VERSION/NAME_perf.parquet``, or any folder that holds such files. The
package is never a dependency: it is located when asked for by name, and its code is not run. Every row keeps to the
hardware: rows that beat a peak or shrink with size are left out and counted, and a source with many of them is refused.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from packaging.version import InvalidVersion, Version

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import did_you_mean
from autoparallel_core.profiles.files import Profile
from autoparallel_core.profiles.plausible import implausible
from autoparallel_core.profiles.tables import Provenance, Table, table_of
from autoparallel_core.spec.cluster import Gpu

PACKAGES = ("aiconfigurator_core", "aisimulate_core", "aiconfigurator", "aisimulate")
MOST_IMPLAUSIBLE = 0.1
"""A source of which more rows cannot be right is refused."""
DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_static": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4",
    "sq": "int8", "int8_wo": "int8_wo", "int4_wo": "int4_wo", "w4a16_mxfp4": "mxfp4_wo", "w4a8_mxfp4_mxfp8": "mxfp4_fp8",
}  # fmt: skip
NARROW_EXPERT = 256
"""Experts sliced below this width run other kernels and are not fitted with the rest."""
Row = Mapping[str, Any]


@frozen
class _File:
    """How the rows of one file become rows of a table; None for rows that say nothing that the model uses."""

    table: str
    convert: Callable[[Row], dict[str, Any] | None]


def _gemm(r: Row) -> dict[str, Any] | None:
    dtype = DTYPES.get(str(r["gemm_dtype"]))
    return {"dtype": dtype, "m": r["m"], "n": r["n"], "k": r["k"], "seconds": _s(r)} if dtype else None


def _expert(r: Row) -> dict[str, Any] | None:
    """Ranks that hold all experts: with skewed routing over several, the fullest one's tokens are not stated."""
    dtype, width = DTYPES.get(str(r["moe_dtype"])), int(r["inter_size"]) // int(r["moe_tp_size"])
    if dtype is None or int(r["moe_ep_size"]) != 1 or width < NARROW_EXPERT or "nongated" in str(r["kernel_source"]):
        return None
    return {
        "dtype": dtype, "tokens": r["num_tokens"], "experts": r["num_experts"], "top_k": r["topk"], "hidden": r["hidden_size"],
        "intermediate": width, "seconds": _s(r),
    }  # fmt: skip


def _heads(r: Row) -> dict[str, Any]:
    kv = int(r["num_key_value_heads"])
    return {"batch": r["batch_size"], "heads": r["num_heads"], "kv_heads": kv or r["num_heads"], "head_dim": r["head_dim"]}


def _context(r: Row) -> dict[str, Any] | None:
    if int(r.get("window_size") or 0) or r["attn_dtype"] not in DTYPES or r["attn_dtype"] != r["kv_cache_dtype"]:
        return None
    past = int(r.get("step") or 0)
    return {
        "phase": "forward", "dtype": DTYPES[r["attn_dtype"]], **_heads(r), "q_len": r["isl"], "kv_len": int(r["isl"]) + past,
        "seconds": _s(r),
    }  # fmt: skip


def _generation(r: Row) -> dict[str, Any] | None:
    if int(r.get("window_size") or 0) or r["kv_cache_dtype"] not in DTYPES:
        return None
    cached = int(r["isl"]) + int(r["step"])
    return {
        "phase": "decode", "dtype": DTYPES[r["kv_cache_dtype"]], **_heads(r), "q_len": 1, "kv_len": cached, "seconds": _s(r),
    }  # fmt: skip


_NCCL = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}


def _nccl(r: Row) -> dict[str, Any] | None:
    kind = _NCCL.get(str(r["op_name"]))
    if kind is None or r["nccl_dtype"] != "half":
        return None
    return {"kind": kind, "bytes": 2 * int(r["message_size"]), "ranks": r["num_gpus"], "nodes": 1, "seconds": _s(r)}


def _custom(r: Row) -> dict[str, Any] | None:
    if str(r.get("backend", "")).endswith("eager") or "eager" in str(r["kernel_source"]):
        return None
    size = 2 * int(r["message_size"])
    return {"kind": "all_reduce_custom", "bytes": size, "ranks": r["num_gpus"], "nodes": 1, "seconds": _s(r)}


_FILES = {
    "gemm_perf": _File("gemm", _gemm),
    "moe_perf": _File("expert_gemm", _expert),
    "context_attention_perf": _File("attention", _context),
    "generation_attention_perf": _File("attention", _generation),
    "nccl_perf": _File("collectives", _nccl),
    "custom_allreduce_perf": _File("collectives", _custom),
}


def _s(r: Row) -> float:
    """Latencies are milliseconds."""
    return float(r["latency"]) * 1e-3


def installed_tables(spec: str, gpu: Gpu) -> Profile:
    """Tables of the installed package: ``SYSTEM/FRAMEWORK[/VERSION]``, the newest version when none is given.

    Raises:
        SpecError: the package is not installed, or has no such system, framework or version.
    """
    name = f"aiconfigurator:{spec}"
    package, data = _locate(name)
    system, *rest = [p for p in spec.strip("/").split("/") if p] or [""]
    systems = sorted(p.name for p in data.iterdir() if p.is_dir())
    if system not in systems:
        raise SpecError(f"profile {name}: {package} has no system '{system}'; {did_you_mean(system, systems)}")
    frameworks = sorted({f for f, _, _ in _found(data / system)} - {"nccl", "oneccl"})
    if not rest or rest[0] not in frameworks or len(rest) > 2:
        what = f"no framework '{rest[0]}' for {system}" if rest else "a framework must follow the system"
        raise SpecError(f"profile {name}: {what}; known: {', '.join(frameworks)} (SYSTEM/FRAMEWORK or SYSTEM/FRAMEWORK/VERSION)")
    version = rest[1] if len(rest) > 1 else None
    if version is not None and version not in {v for f, v, _ in _found(data / system) if f == rest[0]}:
        versions = sorted({v for f, v, _ in _found(data / system) if f == rest[0]})
        raise SpecError(f"profile {name}: no version '{version}' of {rest[0]} for {system}; known: {', '.join(versions)}")
    chosen = _newest(_found(data / system), rest[0], version)
    try:
        from importlib.metadata import version as version_of

        release = version_of(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        release = "?"
    return _read(chosen, gpu, name, f"{package} {release} tables of {system}, {rest[0]}")


def folder_of_tables(folder: Path, gpu: Gpu) -> Profile:
    """All tables below a folder, the newest version of each. Raises SpecError when there is none."""
    files = [f for f in _found(folder) if f[2].stem in _FILES]
    if not files:
        raise SpecError(f"profile {folder}: holds none of {', '.join(_FILES)} as .parquet or .txt")
    return _read(_newest(files, None, None), gpu, str(folder), f"operator tables in {folder.name}")


def _locate(name: str) -> tuple[str, Path]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            data = Path(place) / "systems" / "data"
            if data.is_dir():
                return package, data
    raise SpecError(
        f"profile {name}: the package is not installed (pip install {PACKAGES[0].replace('_', '-')}), or name a folder"
    )


def _found(root: Path) -> list[tuple[str, str, Path]]:
    """(framework, version, file) of every table below a folder."""
    files = sorted(p for p in root.rglob("*_perf.*") if p.suffix in {".parquet", ".txt"})
    return [(p.parent.parent.name, p.parent.name, p) for p in files]


def _newest(files: Iterable[tuple[str, str, Path]], framework: str | None, version: str | None) -> list[Path]:
    """One file per name: of the framework (collectives of the vendor's library belong to all) and version, else the newest."""
    best: dict[str, tuple[Version, Path]] = {}
    for owner, v, path in files:
        library = path.stem == "nccl_perf"
        if path.stem not in _FILES or (framework is not None and owner != framework and not library):
            continue
        if version is not None and not library and v != version and path.stem != "custom_allreduce_perf":
            continue
        try:
            parsed = Version(v)
        except InvalidVersion:
            parsed = Version("0")
        if path.stem not in best or parsed >= best[path.stem][0]:
            best[path.stem] = (parsed, path)
    return [path for _, path in best.values()]


def _read(files: list[Path], gpu: Gpu, name: str, source: str) -> Profile:
    where = f"profile {name}"
    by_table: dict[str, list[dict[str, Any]]] = {}
    devices: set[str] = set()
    for path in files:
        file = _FILES[path.stem]
        for row in _rows(path, where):
            devices.add(str(row.get("device") or ""))
            try:
                found = file.convert(row)
            except (KeyError, TypeError, ValueError) as e:
                raise SpecError(f"{where}: {path.name} has no usable column {e}") from None
            if found is not None:
                by_table.setdefault(file.table, []).append(found)
    notes: list[str] = []
    tables = {}
    for table, rows in by_table.items():
        kept = _plausible(_median(table_of(table, _plain(rows), where)), gpu, where, notes)
        if len(kept):
            tables[table] = kept
    if not tables:
        raise SpecError(f"{where}: holds no row that the model uses")
    versions = {p.stem: p.parent.name for p in files}
    provenance = Provenance(source, device=", ".join(sorted(devices - {""})), libraries=versions, notes=tuple(notes))
    return Profile(gpu.name, provenance, tables, path=name)


def _plain(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {c: [v if isinstance(v := r[c], str | float) else int(v) for r in rows] for c in rows[0]}


def _rows(path: Path, where: str) -> list[dict[str, Any]]:
    if path.suffix == ".txt":
        with path.open(encoding="utf-8", newline="") as f:
            return [{k: _value(v) for k, v in r.items()} for r in csv.DictReader(f)]
    if importlib.util.find_spec("pyarrow") is None:
        raise SpecError(f"{where}: reading {path.name} needs pyarrow, which is not installed (pip install pyarrow)")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def _value(text: str) -> str | int | float:
    """Numbers of a text file as numbers."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _median(table: Table) -> Table:
    """One row per shape: the median over kernels and distributions, which outvotes one that was bound by its host."""
    shape = [c for c in table.columns if c not in {"seconds", "spread"}]
    keys: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(zip(*(table[c].tolist() for c in shape), strict=True)):
        keys.setdefault(key, []).append(i)
    first = np.array([where[0] for where in keys.values()])
    out = table.where(first)
    times = table.seconds.tolist()
    seconds = np.array([statistics.median(times[i] for i in where) for where in keys.values()])
    return Table(table.name, {**out.columns, "seconds": seconds})


def _plausible(table: Table, gpu: Gpu, where: str, notes: list[str]) -> Table:
    """Without the rows that cannot be right. Raises SpecError when they are many."""
    whole, example = len(table), ""
    lacking = table["dtype"].tolist() if "dtype" in table.columns else []
    if lacking:
        from autoparallel_core.profiles.work import work_of

        table = table.where(np.array([d in gpu.peak_flops for d in work_of(table).operand.tolist()]))
    for _ in range(200):
        found = list(implausible(table, gpu))
        if not found:
            break
        example = example or found[0].sentence
        out = {f.slower if f.slower is not None else f.row for f in found}
        table = table.where(~np.isin(np.arange(len(table)), list(out)))
    left_out = whole - len(table)
    if example and left_out > MOST_IMPLAUSIBLE * whole:
        raise SpecError(f"{where}: {left_out} of {whole} rows of {table.name} are impossible on {gpu.name}; the first: {example}")
    if example:
        notes.append(f"{table.name}: {left_out} of {whole} rows left out as impossible on {gpu.name}; the first: {example}")
    return table
