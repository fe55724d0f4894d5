"""From a journal of results to a profile: tables, the device's own figures where no preset has them, provenance."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.files import Profile
from autoparallel_core.profiles.plausible import implausible
from autoparallel_core.profiles.tables import Provenance, Table, table_of
from autoparallel_core.profiles.work import link_bytes
from autoparallel_core.spec.cluster import Gpu
from autoparallel_profiler.devices import Device, cpu_peak_flops


def tables_of(results: Sequence[Mapping[str, Any]]) -> dict[str, Table]:
    """Measured results by table; failed ones are left out."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for r in results:
        if "seconds" in r:
            shape = {k: v for k, v in r["probe"].items() if k != "table"}
            rows.setdefault(r["probe"]["table"], []).append({**shape, "seconds": r["seconds"], "spread": round(r["spread"], 4)})
    return {name: table_of(name, entries, "measurement") for name, entries in rows.items()}


def build_profile(
    results: Sequence[Mapping[str, Any]],
    device: Device,
    preset: Gpu | None,
    *,
    ranks: int,
    threads: int,
    command: str,
    complete: bool,
) -> Profile:
    """The profile of a campaign.

    What is noise rather than a measurement (time that falls with size) is left out and noted; a rate above a peak of a
    preset is left in, for the reader to refuse: it says that this is another GPU.

    Raises:
        SpecError: nothing was measured.
    """
    tables = tables_of(results)
    if not tables:
        failed = next((r["failed"] for r in results if "failed" in r), "no probe finished")
        raise SpecError(f"nothing could be measured: {failed}")
    own = None if preset is not None else cpu_device(device, tables, ranks, threads)
    gpu = preset or own
    assert gpu is not None, "either one is made"
    notes: list[str] = []
    kept = {name: _without_noise(table, gpu, notes) for name, table in tables.items()}
    failures = [r["failed"] for r in results if "failed" in r]
    if failures:
        notes.append(f"{len(failures)} probes could not run; the first: {failures[0]}")
    provenance = Provenance(
        source="autoparallel profile",
        date=dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=command,
        device=device.name,
        driver=device.driver,
        libraries={**device.libraries, "python": platform.python_version()},
        host=platform.node(),
        notes=tuple(notes),
    )
    return Profile(gpu.name, provenance, kept, device=own, complete=complete)


def _without_noise(table: Table, gpu: Gpu, notes: list[str]) -> Table:
    whole = len(table)
    for _ in range(50):
        slow = {f.slower for f in implausible(table, gpu) if f.slower is not None}
        if not slow:
            break
        table = table.where(~np.isin(np.arange(len(table)), sorted(slow)))
    if len(table) < whole:
        notes.append(f"{table.name}: {whole - len(table)} of {whole} points left out: larger shapes took less time")
    return table


def cpu_device(device: Device, tables: Mapping[str, Table], ranks: int, threads: int) -> Gpu:
    """A rank of this machine as a GPU: its share of the memory, and the best rates that were measured as its limits.

    Nobody states a virtual machine's memory and loopback bandwidth, so no measurement can exceed them; its FLOP/s are
    bounded by its vector units.
    """
    peak, how = cpu_peak_flops(threads)
    memory = tables.get("memory")
    rate = float(np.max(memory.number("bytes")[0] / memory.seconds)) if memory is not None else 20e9
    link, link_source = _link(tables)
    share = device.memory_bytes / ranks
    streamed = "measured: the fastest pass of all ranks at once" if memory is not None else "assumed: not measured"
    return Gpu(
        name=device.name,
        vendor="cpu",
        memory_bytes=share,
        marketing_memory_bytes=share,
        hbm_bytes_per_s=rate,
        peak_flops=peak,
        scale_up_bytes_per_s=link,
        scale_up_domain=max(ranks, 1),
        nic_bytes_per_s=link,
        gpus_per_node=max(ranks, 1),
        host_memory_bytes_per_node=device.memory_bytes,
        architecture=device.architecture,
        sources={
            "memory_bytes": f"measured: the machine's over {ranks} ranks" if ranks > 1 else "measured: the machine's",
            "marketing_memory_bytes": "measured: as memory_bytes",
            "hbm_bytes_per_s": streamed,
            "peak_flops": f"assumed: {how}",
            "scale_up_bytes_per_s": link_source,
            "scale_up_domain": "measured: the ranks of this machine",
            "nic_bytes_per_s": f"assumed: as inside the machine ({link_source})",
            "gpus_per_node": "measured: the ranks of this machine",
            "host_memory_bytes_per_node": "measured: the machine's",
        },
    )


def _link(tables: Mapping[str, Table]) -> tuple[float, str]:
    rates = []
    if (table := tables.get("collectives")) is not None:
        size, ranks = table.number("bytes", "ranks")
        moved = [float(link_bytes(k, b, r)) for k, b, r in zip(table["kind"].tolist(), size, ranks, strict=True)]
        rates.append(float(np.max(np.array(moved) / table.seconds)))
    if (table := tables.get("p2p")) is not None:
        rates.append(float(np.max(table.number("bytes")[0] / table.seconds)))
    if not rates:
        return 1e9, "assumed: collectives were not measured"
    return max(rates) * 1.0001, "measured: the fastest collective"
