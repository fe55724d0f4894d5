"""What every rank runs: the probes of a request in order, rank 0 writing each result down as it comes.

``python -m autoparallel_profiler.worker REQUEST.json``, started by torchrun, srun or Ray, which set the usual
environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoparallel_profiler import comms, kernels
from autoparallel_profiler.journal import Journal, append
from autoparallel_profiler.request import Probe, Request
from autoparallel_profiler.timing import Timed


def main(argv: list[str]) -> int:
    """Run a request file; the exit code."""
    run(Request.read(Path(argv[0])))
    return 0


def run(request: Request) -> None:
    """Run what the journal does not hold yet, until all is done or the budget is spent."""
    import torch

    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    if request.device == "cuda":
        torch.cuda.set_device(local)
    else:
        torch.set_num_threads(request.threads)
    with _group(torch, request) as groups:
        started, journal = time.monotonic(), Path(request.journal)
        for probe in Journal.read(journal).missing(request.probes) if rank == 0 or groups is None else _from_first(torch):
            spent = rank == 0 and request.budget_s is not None and time.monotonic() - started > request.budget_s
            if not _agree(torch, groups, None if spent else probe):
                break
            result = _measure(torch, groups, request, probe)
            if rank == 0:
                append(journal, result)
        else:
            _agree(torch, groups, None)


@contextlib.contextmanager
def _group(torch: Any, request: Request) -> Iterator[comms.Groups | None]:
    """The process group of all ranks; None for a single one."""
    if request.world == 1:
        yield None
        return
    distributed = torch.distributed
    distributed.init_process_group("nccl" if request.device == "cuda" else "gloo")
    try:
        yield comms.Groups(torch, request.world, request.ranks_per_node)
    finally:
        distributed.destroy_process_group()


def _agree(torch: Any, groups: comms.Groups | None, probe: Probe | None) -> bool:
    """Rank 0 tells the others what comes next; None ends the campaign everywhere."""
    if groups is not None and groups.rank == 0:
        torch.distributed.broadcast_object_list([probe], src=0)
    return probe is not None


def _from_first(torch: Any) -> Iterator[Probe]:
    """On the other ranks: what rank 0 says comes next, until it says that nothing does."""
    while True:
        box: list[Any] = [None]
        torch.distributed.broadcast_object_list(box, src=0)
        if box[0] is None:
            return
        yield box[0]


def _measure(torch: Any, groups: comms.Groups | None, request: Request, probe: Probe) -> dict[str, Any]:
    """One probe on every rank; the result is the same on all."""
    try:
        timed, failed = _time(torch, groups, request, probe), None
    except kernels.Unsupported as e:
        timed, failed = None, str(e)
    if groups is None:
        return _result(probe, [timed] if timed else [], failed)
    everyone: list[Any] = [None] * request.world
    torch.distributed.all_gather_object(everyone, (timed and (timed.seconds, timed.spread), failed))
    reasons = [why for _, why in everyone if why]
    return _result(probe, [Timed(t[0], t[1]) for t, _ in everyone if t], reasons[0] if reasons else None)


def _time(torch: Any, groups: comms.Groups | None, request: Request, probe: Probe) -> Timed | None:
    budget = request.seconds_per_probe
    if probe["table"] in {"collectives", "p2p"}:
        assert groups is not None, "a collective needs several ranks"
        return comms.time_collective(torch, groups, request.device, probe, budget)
    shape = {k: v for k, v in probe.items() if k != "table"}
    # The ranks of a processor share its cores; accelerators do not share theirs.
    together = comms.together_of(torch) if groups is not None and request.device == "cpu" else None
    found = kernels.time_kernel(probe["table"], shape, request.device, budget_s=budget, together=together)
    return Timed(found["seconds"], found["spread"])


def _result(probe: Probe, times: list[Timed], failed: str | None) -> dict[str, Any]:
    """Median over the ranks, which all worked at the same time."""
    if failed is not None or not times:
        return {"probe": probe, "failed": failed or "no rank took part"}
    ordered = sorted(times, key=lambda t: t.seconds)
    middle = ordered[len(ordered) // 2]
    across = (ordered[-1].seconds - ordered[0].seconds) / middle.seconds
    return {"probe": probe, "seconds": middle.seconds, "spread": max(middle.spread, across if len(times) > 1 else 0.0)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
