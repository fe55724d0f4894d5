"""A plain CSV with named columns: the columns of one table of a profile and a time, in the unit that its name states.

``m,n,k,dtype,latency_ms`` is a GEMM, ``kind,bytes,ranks,time_us`` a collective. A column ``table`` names the table, row by
row; without it the columns tell. Columns that no table knows are refused, so that none is silently dropped.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.files import Profile
from autoparallel_core.profiles.tables import TABLES, Provenance, table_of
from autoparallel_core.spec.cluster import Gpu

_UNITS = {
    "seconds": 1.0, "time_s": 1.0, "latency_s": 1.0, "ms": 1e-3, "time_ms": 1e-3, "latency_ms": 1e-3, "us": 1e-6, "time_us": 1e-6,
    "latency_us": 1e-6, "ns": 1e-9, "time_ns": 1e-9, "latency_ns": 1e-9,
}  # fmt: skip
_EXTRA = ("table", "spread")


def read_csv(path: Path, gpu: Gpu) -> Profile:
    """Measured rows of one or several tables.

    Raises:
        SpecError: no header, no or several time columns, an unknown or missing column, a value that is no number.
    """
    where = f"profile {path}"
    try:
        with path.open(encoding="utf-8-sig", newline="") as f:
            reader = csv.DictReader(line for line in f if not line.startswith("#"))
            header = [h.strip() for h in reader.fieldnames or ()]
            reader.fieldnames = header
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as e:
        raise SpecError(f"{where}: is not a CSV: {e}") from None
    times = [c for c in header if c in _UNITS]
    if len(times) != 1:
        found = f"has {' and '.join(times)}" if times else "has no column with the time"
        raise SpecError(f"{where}: {found}; exactly one of {', '.join(_UNITS)} is needed")
    fixed = None if "table" in header else _table_of(header, times[0], where)
    by_table: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows, 2):
        name = fixed or (row.get("table") or "").strip()
        if name not in TABLES:
            raise SpecError(f"{where}: line {number}: table '{name}' is not one of {', '.join(TABLES)}")
        by_table.setdefault(name, []).append(_row(row, name, times[0], f"{where}: line {number}"))
    if not by_table:
        raise SpecError(f"{where}: has no rows")
    tables = {name: table_of(name, entries, where) for name, entries in by_table.items()}
    return Profile(gpu.name, Provenance(source=f"CSV {path.name}"), tables)


def _table_of(header: list[str], time: str, where: str) -> str:
    given = set(header) - {time, *_EXTRA}
    fitting = [
        n
        for n, columns in TABLES.items()
        if given <= set(columns) and {c for c, s in columns.items() if s.default is None} <= given
    ]
    if len(fitting) == 1:
        return fitting[0]
    needed = "; ".join(f"{n}: {', '.join(c for c, s in columns.items() if s.default is None)}" for n, columns in TABLES.items())
    raise SpecError(f"{where}: the columns {', '.join(header)} are those of no table. Needed besides the time: {needed}")


def _row(row: dict[str, Any], name: str, time: str, where: str) -> dict[str, Any]:
    if None in row or None in row.values():
        raise SpecError(f"{where}: has not as many values as the header has columns")
    out: dict[str, Any] = {}
    for column, text in row.items():
        value = text.strip()
        if column == "table" or (not value and column not in TABLES[name]):
            continue
        if column == time:
            out["seconds"] = _number(value, column, where) * _UNITS[time]
        elif column in TABLES[name] and TABLES[name][column].kind == "word":
            out[column] = value
        elif value:
            number = _number(value, column, where)
            out[column] = int(number) if column in TABLES[name] and number == int(number) else number
    return out


def _number(text: str, column: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"{where}: {column} is '{text}', which is no number") from None
