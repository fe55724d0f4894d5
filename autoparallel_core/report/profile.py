"""What a measurement found, in a screenful: rates against the device's peaks, and where the file went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from autoparallel_core.profiles.apply import apply_profile
from autoparallel_core.profiles.files import Profile
from autoparallel_core.profiles.plausible import peak_of
from autoparallel_core.profiles.work import work_of
from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import bullets, heading, make_console, put
from autoparallel_core.spec.cluster import Gpu

_LAUNCHES = {
    "kernel": "launch of an operator",
    "layer": "launches of a layer",
    "sharded_layer": "what a layer of sharded tensors (DTensor) adds to each pass",
}


def print_profile(gpu: Gpu, profile: Profile, files: Sequence[Path], *, cached: bool, left: int, whole: int) -> None:
    """Print the summary; ``cached``: the first of the files is where every answer looks."""
    console = make_console()
    heading(console, f"{gpu.name}: {profile.rows:,} points")
    bullets(console, list(findings(gpu, profile)))
    bullets(console, [*profile.provenance.notes, *apply_profile(gpu, profile).notes])
    if left:
        put(console, f"Unfinished: {whole - left} of {whole} are measured; the same command goes on from there.", style="bold")
    for file in files:
        put(console, f"Written to {file}")
    if cached:
        put(console, f"Used by every answer about {gpu.name} that does not say --no-profile.")
    else:
        put(console, f"Used by answers about {gpu.name} that say --profile-data {files[0]}.")


def findings(gpu: Gpu, profile: Profile) -> Iterator[str]:
    """One sentence per kind of operator."""
    measured = apply_profile(gpu, profile).gpu
    for table in ("gemm", "expert_gemm", "attention"):
        if table not in profile.tables:
            continue
        for (key,), rows in profile.tables[table].by("phase" if table == "attention" else "dtype"):
            work = work_of(rows)
            rate = work.least_flops / rows.seconds
            share = float(np.max(rate / peak_of(work.operand, gpu)))
            yield f"{table} {key}: {len(rows)} shapes, up to {fmt.flops(float(rate.max()))} ({fmt.percent(share)} of the peak)"
    if (passes := profile.tables.get("memory")) is not None:
        rate = passes.number("bytes")[0] / passes.seconds
        share = measured.training.get("hbm", 1.0)
        yield f"memory: {len(passes)} passes, up to {fmt.bandwidth(float(rate.max()))}; copies reach {share:.0%} of the bandwidth"
    if (messages := profile.tables.get("collectives")) is not None:
        groups = {key for key, _ in messages.by("kind", "ranks")}
        for kind, curves in measured.collectives.items():
            for c in curves:
                if (kind, c.ranks) in groups:
                    yield f"{kind} over {c.ranks}: {fmt.bandwidth(c.bus_bytes_per_s)} bus, {fmt.seconds(c.latency_s)} latency"
    if (launches := profile.tables.get("launch")) is not None:
        for what, seconds in zip(launches["what"].tolist(), launches.seconds.tolist(), strict=True):
            yield f"{_LAUNCHES[what]}: {fmt.seconds(seconds)}"
