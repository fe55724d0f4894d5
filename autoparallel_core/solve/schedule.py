"""Pipeline schedules, event by event: the order of every rank's work, and when the last of it is done.

The chain is cut into p·v chunks; rank r holds chunks r, r + p, …. Forward of chunk c waits for chunk c−1, backward for
chunk c+1, both for what the rank does before them. Orders: 1F1B (PipeDream-Flush, arXiv 2006.09503) and its interleaved
form (Narayanan et al., arXiv 2104.04473, section 2.2), all forwards first for GPipe (arXiv 1811.06965).

Once the pipeline is full the events repeat with a period, so that long steps are extrapolated from two shorter ones:
exact for equal chunks, within one percent for chunks that differ by a factor of three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Schedule = Literal["1f1b", "gpipe"]
Task = tuple[bool, int, int]
"""(backward, chunk, micro-batch)."""

_GROUPS = 6
"""Groups of p micro-batches that are simulated one by one before the period is used."""


def makespan(
    forward: ArrayLike, backward: ArrayLike, ranks: int, micro_batches: int, *, schedule: Schedule = "1f1b", send: float = 0.0
) -> float:
    """Seconds from the first forward to the last backward.

    Args:
        forward: seconds of each chunk for one micro-batch, [p·v].
        backward: the same backward.
        ranks: p.
        micro_batches: m.
        schedule: the order.
        send: seconds between the end of a task and the start of the one that waits for it on another rank.

    Raises:
        ValueError: chunks are no multiple of the ranks, numbers are not positive, or several chunks per rank meet
            micro-batches that are no multiple of the ranks (their order would block itself).
    """
    f, b = np.asarray(forward, dtype=np.float64), np.asarray(backward, dtype=np.float64)
    if f.ndim != 1 or f.shape != b.shape or ranks < 1 or len(f) % ranks or not len(f):
        raise ValueError(f"{f.shape} and {b.shape} chunks cannot be spread over {ranks} ranks")
    if micro_batches < 1:
        raise ValueError(f"micro-batches must be positive, not {micro_batches}")
    if len(f) > ranks and schedule == "1f1b" and micro_batches % ranks:
        raise ValueError(f"interleaving needs micro-batches in a multiple of {ranks}, not {micro_batches}")
    whole = micro_batches // ranks * ranks
    near = _GROUPS * ranks
    if micro_batches <= near + 2 * ranks:
        return _simulate(f, b, ranks, micro_batches, schedule, send)
    # The rest of a group that is not full stays in the simulated part.
    rest = micro_batches - whole
    early = _simulate(f, b, ranks, near + rest, schedule, send)
    late = _simulate(f, b, ranks, near + ranks + rest, schedule, send)
    return early + (late - early) * (whole - near) / ranks


def orders(ranks: int, chunks: int, micro_batches: int, schedule: Schedule = "1f1b") -> list[list[Task]]:
    """Tasks of every rank in order."""
    v = chunks // ranks
    # Micro-batches go through the chunks of a rank in groups of p.
    runs = [(k, m) for g in range(0, micro_batches, ranks) for k in range(v) for m in range(g, min(g + ranks, micro_batches))]
    out = []
    for r in range(ranks):
        forward = [(False, k * ranks + r, m) for k, m in runs]
        backward = [(True, (v - 1 - k) * ranks + r, m) for k, m in runs]
        if schedule == "gpipe":
            ahead = len(runs)
        elif v == 1:
            ahead = min(ranks - r - 1, len(runs))
        else:
            ahead = min(2 * (ranks - r - 1) + (v - 1) * ranks, len(runs))
        tasks = forward[:ahead]
        for i in range(ahead, len(runs)):
            tasks += [forward[i], backward[i - ahead]]
        out.append(tasks + backward[len(runs) - ahead :])
    return out


def _simulate(forward: Array, backward: Array, ranks: int, micro_batches: int, schedule: Schedule, send: float) -> float:
    chunks = len(forward)
    f, b = forward.tolist(), backward.tolist()
    done: list[dict[int, float]] = [{} for _ in range(2 * chunks)]  # forward of chunk c at c, backward at chunks + c
    todo = orders(ranks, chunks, micro_batches, schedule)
    at, clock = [0] * ranks, [0.0] * ranks
    moving = True
    while moving:
        moving = False
        for r in range(ranks):
            tasks, i, now = todo[r], at[r], clock[r]
            while i < len(tasks):
                ready = _ready(tasks[i], done, chunks, send if ranks > 1 else 0.0)
                if ready is None:
                    break
                back, c, m = tasks[i]
                now = max(now, ready) + (b[c] if back else f[c])
                done[c + chunks * back][m] = now
                i += 1
            moving = moving or i > at[r]
            at[r], clock[r] = i, now
    assert all(i == len(t) for i, t in zip(at, todo, strict=True)), "the order of a schedule cannot block itself"
    return max(clock)


def _ready(task: Task, done: Sequence[dict[int, float]], chunks: int, send: float) -> float | None:
    """When what the task waits for arrives; None when that has no time yet."""
    back, c, m = task
    if not back:
        return 0.0 if c == 0 else _after(done[c - 1].get(m), send)
    return done[c].get(m) if c == chunks - 1 else _after(done[chunks + c + 1].get(m), send)


def _after(time: float | None, send: float) -> float | None:
    return None if time is None else time + send
