"""Seconds of a call: warmed up, on cold operands, out of repeated batches, and their spread.

An accelerator is one's own, and the median is what a call takes. A processor is shared with whatever else runs, which only
ever adds time, so there the best batch counts. Its ranks share the cores among each other, too: where there are more of
them than cores, a call shorter than the scheduler's time slice runs undisturbed and a long one waits for its turn. So
batches on a processor last many slices, start at the same time on all ranks, and the mean over the ranks counts.

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
BATCH_S = 0.04
"""At least so long is a batch on a processor: a dozen time slices of a usual Linux scheduler (1 to 4 ms)."""
_SLEEP_CYCLES = 2_000_000

Together = Callable[[float], float]
"""Called by all ranks of a processor at the same time: the mean of their numbers. It is a barrier, too."""


@frozen
class Timed:
    """Seconds of one call, and the interquartile range over it."""

    seconds: float
    spread: float
    calls: int = 0


def copies(device: str, operand_bytes: float) -> int:
    """Sets of operands to rotate over."""
    return int(max(1, min(MOST_COPIES, -(-CACHE_BYTES[device] // max(operand_bytes, 1.0)))))


def time_calls(call: Callable[[int], Any], device: str, *, budget_s: float, together: Together | None = None) -> Timed:
    """Time ``call(i)`` for i = 0, 1, 2 …; on a processor at the same time as all ranks that call ``together``."""
    for i in range(3):
        call(i)
    if device == "cpu":
        return _time_on_host(call, budget_s, together or float)
    one = _accelerator_batch(call, 0, 1)
    per_batch = max(1, min(1000, int(budget_s / LEAST_BATCHES / max(one, 1e-7))))
    batches: list[float] = []
    done, started = 0, time.perf_counter()
    while len(batches) < LEAST_BATCHES or (len(batches) < MOST_BATCHES and time.perf_counter() - started < budget_s):
        batches.append(_accelerator_batch(call, done, per_batch) / per_batch)
        done += per_batch
    return typical(batches, done)


def _time_on_host(call: Callable[[int], Any], budget_s: float, together: Together) -> Timed:
    """Batches of all ranks: as many calls and as many batches on each, and the mean of their times."""
    together(0.0)
    one = max(together(host_batch(call, 0, 3)) / 3, 1e-7)
    per_batch = calls_per_batch(one, budget_s)
    batches: list[float] = []
    for turn in range(LEAST_BATCHES):
        together(0.0)
        batches.append(together(host_batch(call, turn * per_batch, per_batch)) / per_batch)
    return best(batches, LEAST_BATCHES * per_batch)


def calls_per_batch(call_s: float, budget_s: float) -> int:
    """Calls of so many seconds in a batch on a processor; the same on all ranks if both numbers are."""
    return max(1, min(20_000, round(max(BATCH_S, budget_s / LEAST_BATCHES) / call_s)))


def typical(times: Sequence[float], calls: int) -> Timed:
    """Median, and interquartile range over it."""
    return Timed(statistics.median(times), _range(times) / statistics.median(times), calls)


def best(times: Sequence[float], calls: int) -> Timed:
    """The quickest, and interquartile range over it."""
    return Timed(min(times), _range(times) / min(times), calls)


def _range(times: Sequence[float]) -> float:
    quarters = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [0.0, 0.0, 0.0]
    return quarters[2] - quarters[0]


def host_batch(call: Callable[[int], Any], first: int, n: int) -> float:
    """Seconds of ``n`` calls by this rank's clock."""
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
