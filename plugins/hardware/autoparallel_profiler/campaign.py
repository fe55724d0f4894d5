"""One campaign from request to profile: plan, start the ranks, watch, build; interrupted, it keeps what it has."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import did_you_mean
from autoparallel_core.profiles.files import Profile, cache_directory
from autoparallel_core.spec.cluster import Gpu
from autoparallel_profiler import launchers, sweep
from autoparallel_profiler.build import build_profile
from autoparallel_profiler.devices import Device, find_device, preset_of
from autoparallel_profiler.journal import Journal
from autoparallel_profiler.request import Request

DTYPES = {"cuda": ("bf16", "fp8"), "cpu": ("bf16",)}
GRACE_S = 60.0
"""Beyond its budget a campaign may take this long to start and to finish a probe."""


@frozen(eq=False)
class Campaign:
    """A planned campaign."""

    device: Device
    preset: Gpu | None
    request: Request
    journal: Journal
    launch: launchers.Launch
    threads: int
    request_file: Path


def run_campaign(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Measure, or with ``dry_run`` say how it would be measured.

    Args:
        options: ``device`` (cuda, cpu, None), ``gpus`` (presets), ``gpu`` (the preset named by the user or None), ``arch``
            (a ModelArch or None), ``nodes``, ``ranks`` (per node), ``threads``, ``tables``, ``dtypes``, ``budget_s``,
            ``seconds_per_probe``, ``backend`` (auto, local, slurm, ray), ``launcher_arguments``, ``fresh``, ``dry_run``,
            ``command`` (for the provenance), ``progress`` (called with the probes done and all).

    Returns:
        ``{"command", "probes", "missing"}`` and, unless it is a dry run, ``{"profile"}``.

    Raises:
        SpecError: something asked for is not here, or the ranks failed; what they said is quoted.
    """
    plan = _plan(options)
    whole = len(plan.request.probes)
    left = len(plan.journal.missing(plan.request.probes))
    answer: dict[str, Any] = {"command": plan.launch.shown(), "backend": plan.launch.backend, "probes": whole, "missing": left}
    if options.get("dry_run"):
        return answer
    if left:
        _run(plan, options.get("progress") or (lambda *_: None))
    results = Journal.read(plan.journal.path).results
    wanted = [results[k] for k in results]
    missing = len(Journal.read(plan.journal.path).missing(plan.request.probes))
    profile = build_profile(
        wanted,
        plan.device,
        plan.preset,
        ranks=plan.request.ranks_per_node,
        threads=plan.threads,
        command=str(options.get("command", "")),
        complete=missing == 0,
    )
    return {**answer, "missing": missing, "profile": profile}


def partial_profile(options: Mapping[str, Any]) -> Profile | None:
    """What an interrupted campaign has measured so far, None when that is nothing."""
    plan = _plan(options)
    results = list(plan.journal.results.values())
    if not any("seconds" in r for r in results):
        return None
    return build_profile(
        results, plan.device, plan.preset, ranks=plan.request.ranks_per_node, threads=plan.threads,
        command=str(options.get("command", "")), complete=not plan.journal.missing(plan.request.probes),
    )  # fmt: skip


def _plan(options: Mapping[str, Any]) -> Campaign:
    device = find_device(options.get("device"))
    preset = preset_of(device, options["gpus"], options.get("gpu"))
    if device.kind == "cpu" and preset is not None:
        raise SpecError(f"--gpu-type {preset.name}: this machine shows torch no accelerator, only {device.name}")
    nodes = int(options.get("nodes") or 1)
    ranks = options.get("ranks")
    if ranks is None:
        ranks = device.count if device.kind == "cuda" else min(device.count, 2)
    if ranks > device.count and device.kind == "cuda" and nodes == 1:
        raise SpecError(f"--ranks {ranks}: this machine has {device.count} GPUs")
    threads = int(options.get("threads") or max(1, device.count // ranks)) if device.kind == "cpu" else 1
    tables = tuple(options.get("tables") or sweep.TABLES)
    for name in tables:
        if name not in sweep.TABLES:
            raise SpecError(f"--what {name}: {did_you_mean(name, sweep.TABLES)}")
    probes = sweep.probes(
        device.kind,
        ranks_per_node=ranks,
        nodes=nodes,
        dtypes=options.get("dtypes") or DTYPES[device.kind],
        tables=tables,
        arch=options.get("arch"),
    )
    if not probes:
        raise SpecError(f"--what {','.join(tables)}: nothing of it can be measured with {ranks * nodes} ranks")
    folder = cache_directory() / "campaigns"
    stem = re.sub(r"[^a-z0-9.]+", "-", (preset.name if preset else device.name).casefold())
    head = {
        "device": device.name, "driver": device.driver, "libraries": dict(device.libraries), "ranks": ranks, "nodes": nodes,
        "threads": threads,
    }  # fmt: skip
    journal = Journal.read(folder / f"{stem}-{nodes}x{ranks}.jsonl")
    if not options.get("dry_run"):
        journal = journal.begun(head, fresh=bool(options.get("fresh")))
    request = Request(
        device.kind, probes, str(journal.path), ranks, nodes, threads, options.get("budget_s"),
        float(options.get("seconds_per_probe") or (0.1 if device.kind == "cpu" else 0.2)), preset.name if preset else "",
    )  # fmt: skip
    request_file = folder / f"{stem}-{nodes}x{ranks}.request.json"
    backend = options.get("backend") or "auto"
    launch = launchers.launch_of(
        launchers.detect(nodes) if backend == "auto" else backend,
        request_file,
        nodes=nodes,
        ranks_per_node=ranks,
        threads=threads,
        accelerator=device.kind == "cuda",
        extra=options.get("launcher_arguments") or (),
    )
    return Campaign(device, preset, request, journal, launch, threads, request_file)


def _run(plan: Campaign, progress: Callable[[int, int], None]) -> None:
    """Start the ranks and watch the journal grow. Raises SpecError when they fail."""
    plan.request.write(plan.request_file)
    log = plan.journal.path.with_suffix(".log")
    log.write_text(f"$ {plan.launch.shown()}\n", encoding="utf-8")
    whole, started = len(plan.request.probes), time.monotonic()
    seen = _Lines(plan.journal.path)

    def watch() -> None:
        progress(min(whole, seen.count() - 1), whole)
        budget = plan.request.budget_s
        if budget is not None and plan.launch.backend == "local" and time.monotonic() - started > budget + GRACE_S:
            raise SpecError(f"the ranks did not stop {GRACE_S:g} s after their time was up; what they said is in {log}")

    code = launchers.execute(plan.launch, log, watch)
    if code:
        said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        error = next((line for line in reversed(said) if re.match(r"\s*(\[rank\d+\]: )?\w*(Error|Exception)\b", line)), said[-1])
        raise SpecError(f"the ranks failed with exit code {code}: {error.strip()[:300]} (all of it is in {log})")


class _Lines:
    """Counts the lines of a growing file without reading it again."""

    def __init__(self, path: Path) -> None:
        self.path, self.at, self.lines = path, 0, 0

    def count(self) -> int:
        with self.path.open("rb") as f:
            f.seek(self.at)
            new = f.read()
        self.at += len(new)
        self.lines += new.count(b"\n")
        return self.lines
