"""The text that nccl-tests and rccl-tests print: one table per run of a collective, sizes in bytes, times in µs.

``size`` is the whole buffer per rank for every collective (the gathered one for all-gather and reduce-scatter), which is
also how a profile counts (nccl-tests, PERFORMANCE.md). The out-of-place columns are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.files import Profile
from autoparallel_core.profiles.tables import Provenance, table_of
from autoparallel_core.spec.cluster import Gpu

_TESTS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all",
    "broadcast": "broadcast", "sendrecv": "p2p",
}  # fmt: skip
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]+\]\s*(.*)")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(.*)$")
_NAME = re.compile(r"\b(\w+?)_perf\b|[Tt]est starting:\s*(\w+?)_perf")


@frozen
class _Run:
    """One run of one test."""

    first_line: int
    kind: str | None
    ranks: dict[int, tuple[str, str]] = field(factory=dict)
    """Rank → (host, device)."""
    rows: list[tuple[int, float, float, str, int]] = field(factory=list)
    """(bytes, seconds, bus bandwidth, reduction, line)."""


def read_nccl_tests(path: Path, gpu: Gpu) -> Profile:
    """The collectives of one output file.

    Raises:
        SpecError: no rank or row in it, a row that is no result, wrong results, or a collective that cannot be told.
    """
    where = f"profile {path}"
    text = path.read_text(encoding="utf-8")
    collectives: list[dict[str, object]] = []
    p2p: list[dict[str, object]] = []
    devices: list[str] = []
    for run in _runs(text, where):
        if not run.rows:
            continue
        n = len(run.ranks)
        if n < 2:
            raise SpecError(
                f"{where}: line {run.first_line}: lists {n} ranks ('# Rank … on HOST device …'); at least 2 are needed"
            )
        nodes = len({host for host, _ in run.ranks.values()})
        kind = run.kind or _by_bandwidth(run, n) or _by_name(path.name)
        if kind is None:
            raise SpecError(
                f"{where}: line {run.first_line}: says neither which collective ran nor does its file name; name the file "
                f"after it ({', '.join(f'{t}_perf' for t in _TESTS)})"
            )
        devices += [device for _, device in run.ranks.values() if device]
        for size, seconds, *_ in run.rows:
            if kind == "p2p":
                p2p.append({"bytes": size, "nodes": min(nodes, 2), "seconds": seconds})
            else:
                collectives.append({"kind": kind, "bytes": size, "ranks": n, "nodes": nodes, "seconds": seconds})
    if not collectives and not p2p:
        raise SpecError(f"{where}: holds no row of results that moved a byte")
    raw = {"collectives": collectives, "p2p": p2p}
    tables = {name: table_of(name, rows, where) for name, rows in raw.items() if rows}
    return Profile(gpu.name, _provenance(text, path, devices), tables)


def _runs(text: str, where: str) -> Iterator[_Run]:
    """Runs in order; a test's name counts for the run that it stands before, or in before its rows."""
    run: _Run | None = None
    announced: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if named := _NAME.search(line):
            announced = _TESTS.get(named[1] or named[2], announced)
            if run is not None and not run.rows:
                run = _Run(run.first_line, announced, run.ranks, run.rows)
        if line.startswith("# nThread") or (run is None and line.startswith("#")):
            if run is not None:
                yield run
            kind = announced if run is None or run.rows else announced or run.kind
            run, announced = _Run(number, kind), None
        if run is None:
            continue
        if rank := _RANK.match(line):
            run.ranks[int(rank[1])] = (rank[2], rank[3].strip())
        elif row := _ROW.match(line):
            result = _result(row, number, where)
            if result is not None:
                run.rows.append(result)
    if run is not None:
        yield run


def _result(row: re.Match[str], number: int, where: str) -> tuple[int, float, float, str, int] | None:
    size, reduction, rest = int(row[1]), row[4], row[6].split()
    try:
        seconds, bus = float(rest[0]) * 1e-6, float(rest[2])
    except (IndexError, ValueError):
        raise SpecError(f"{where}: line {number} is not a row of results: {row[0].strip()[:80]}") from None
    wrong = rest[3] if len(rest) > 3 else "0"
    if wrong not in {"0", "N/A"} and float(wrong) > 0:
        raise SpecError(f"{where}: line {number} reports {wrong} wrong results; a broken collective says nothing about speed")
    return (size, seconds, bus, reduction, number) if size > 0 and seconds > 0 else None


def _by_bandwidth(run: _Run, n: int) -> str | None:
    """What the printed bus bandwidth's factor over size/time tells: 2(n−1)/n reduces, (n−1)/n with a reduction scatters."""
    size, seconds, bus, reduction, _ = max(run.rows)
    if bus <= 0:
        return None
    factor = bus * 1e9 * seconds / size
    reduces = reduction.lower() not in {"none", "-"}
    if reduces and n > 2 and abs(factor / (2 * (n - 1) / n) - 1) < 0.05:
        return "all_reduce"
    if reduces and n > 2 and abs(factor / ((n - 1) / n) - 1) < 0.05:
        return "reduce_scatter"
    if reduces and n == 2:
        return "all_reduce" if abs(factor - 1) < 0.05 else "reduce_scatter"
    return None


def _by_name(name: str) -> str | None:
    folded = re.sub(r"[-_ ]", "", name.casefold())
    return next((kind for test, kind in _TESTS.items() if test.replace("_", "") in folded), None)


def _provenance(text: str, path: Path, devices: list[str]) -> Provenance:
    libraries = dict(re.findall(r"((?:nccl|rccl)(?:-\w+)?)(?:[ =]| version )v?(\d[\w.]*)", text, flags=re.IGNORECASE))
    settings = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("# nThread")), "")
    return Provenance(
        source=f"{'rccl' if 'rccl' in text.casefold() else 'nccl'}-tests output {path.name}",
        device=", ".join(dict.fromkeys(devices)),
        libraries={k.lower(): v for k, v in libraries.items()},
        command=settings,
    )
