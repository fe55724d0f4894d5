"""Seconds of a call: warmed up, on cold operands, a quantile and the spread of repeated batches.

An accelerator is one's own, and the median is what a call takes. A processor is shared with whatever else runs, which only
ever adds time, so there the lower quartile is taken.

On an accelerator the host first gives it something to wait for, so that the timed calls queue up behind each other and
no launch is timed with them. Calls take turns among copies of their operands whose sum exceeds the last cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

CACHE_BYTES = {"cuda": 256e6, "cpu": 96e6}
"""More than any last-level cache of such devices; operands rotate over as much memory."""
MOST_COPIES = 64
LEAST_BATCHES, MOST_BATCHES = 5, 50
_SLEEP_CYCLES = 2_000_000


@frozen
class Timed:
    """Seconds of one call, and the interquartile range over it."""

    seconds: float
    spread: float
    calls: int = 0


def copies(device: str, operand_bytes: float) -> int:
    """Sets of operands to rotate over."""
    return int(max(1, min(MOST_COPIES, -(-CACHE_BYTES[device] // max(operand_bytes, 1.0)))))


def time_calls(call: Callable[[int], Any], device: str, *, budget_s: float, before: Callable[[], None] | None = None) -> Timed:
    """Time ``call(i)`` for i = 0, 1, 2 …; ``before`` runs ahead of every batch (a barrier of all ranks)."""
    clock = _accelerator_batch if device == "cuda" else _host_batch
    for i in range(3):
        call(i)
    one = clock(call, 0, 1)
    per_batch = max(1, min(1000, int(budget_s / LEAST_BATCHES / max(one, 1e-7))))
    batches: list[float] = []
    done, started = 0, time.perf_counter()
    while len(batches) < LEAST_BATCHES or (len(batches) < MOST_BATCHES and time.perf_counter() - started < budget_s):
        if before is not None:
            before()
        batches.append(clock(call, done, per_batch) / per_batch)
        done += per_batch
        if len(batches) >= LEAST_BATCHES and time.perf_counter() - started > budget_s:
            break
    return summary(batches, device, done)


def summary(times: Sequence[float], device: str, calls: int) -> Timed:
    """Median (CPU: lower quartile) and relative interquartile range."""
    quarters = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    value = quarters[1] if device == "cuda" else quarters[0]
    return Timed(value, (quarters[2] - quarters[0]) / value, calls)


def _host_batch(call: Callable[[int], Any], first: int, n: int) -> float:
    started = time.perf_counter()
    for i in range(first, first + n):
        call(i)
    return time.perf_counter() - started


def _accelerator_batch(call: Callable[[int], Any], first: int, n: int) -> float:
    import torch

    cuda: Any = torch.cuda
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cuda.synchronize()
    cuda._sleep(_SLEEP_CYCLES)  # noqa: SLF001  torch's own timers do the same
    start.record()
    for i in range(first, first + n):
        call(i)
    end.record()
    cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3
