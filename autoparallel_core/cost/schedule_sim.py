"""A discrete-event simulator of pipeline schedules: the oracle of the closed forms, and the source of timelines.

Every rank runs its tasks in the order of its schedule, each as soon as the rank is free and its inputs have arrived.
Axis legend: C virtual stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from autoparallel_core.cost.schedule_orders import Task, orders, rank_of
from autoparallel_core.errors import SpecError


@frozen
class Slot:
    """One task as it ran."""

    rank: int
    task: Task
    start_s: float
    end_s: float


@frozen
class Timeline:
    """A simulated step, without gradient reduction and optimizer."""

    slots: tuple[Slot, ...]
    ranks: int

    @property
    def end_s(self) -> float:
        return max(s.end_s for s in self.slots)

    def busy_s(self, rank: int) -> float:
        """Seconds in which the rank runs something."""
        return sum(s.end_s - s.start_s for s in self.slots if s.rank == rank)

    @property
    def bubble_s(self) -> float:
        """Idle seconds of the busiest rank."""
        return self.end_s - max(self.busy_s(r) for r in range(self.ranks))

    def peak_in_flight(self, rank: int) -> int:
        """Most micro-batches, counted per virtual stage of the rank, that wait for their backward at once."""
        events: list[tuple[float, int]] = []
        for s in (s for s in self.slots if s.rank == rank):
            if s.task.kind in {"F", "FB"}:
                events.append((s.start_s, 1))
            if s.task.kind in {"B", "FB", "W"}:
                events.append((s.end_s, -1))
        level = peak = 0
        for _, change in sorted(events):
            level += change
            peak = max(peak, level)
        return peak


def simulate(
    schedule: str,
    m: int,
    forward_s: Sequence[float],
    input_s: Sequence[float],
    weight_s: Sequence[float],
    *,
    ranks: int,
    transfer_s: float = 0.0,
) -> Timeline:
    """Run ``m`` micro-batches.

    Args:
        schedule: 1f1b (interleaved with more virtual stages than ranks), gpipe, zero_bubble or dualpipe_v.
        m: micro-batches.
        forward_s: seconds of the forward of one micro-batch, by virtual stage, [C].
        input_s: of the input gradient (and whatever is recomputed for it), [C].
        weight_s: of the weight gradient, [C].
        ranks: pipeline ranks; C is a multiple of it.
        transfer_s: seconds between the end of a stage and the start of its neighbour on another rank.

    Raises:
        SpecError: the schedule does not exist for these numbers.
    """
    chunks = len(forward_s)
    if ranks < 1 or chunks % ranks or not len(input_s) == len(weight_s) == chunks:
        raise SpecError(f"{chunks} forward, {len(input_s)} input and {len(weight_s)} weight times do not fit {ranks} ranks")
    queue = orders(schedule, ranks, chunks // ranks, m)
    done: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * ranks, [0] * ranks
    slots: list[Slot] = []

    def arrival(key: tuple[str, int, int], rank: int) -> float | None:
        end = done.get(key)
        return None if end is None else end + (transfer_s if rank_of(schedule, key[2], ranks) != rank else 0.0)

    def ready(task: Task, rank: int) -> float | None:
        """When the inputs of a task are there; None while one of them has not run."""
        needs: list[tuple[str, int, int]] = []
        if task.kind in {"F", "FB"} and task.stage:
            needs.append(("F", task.micro, task.stage - 1))
        back = task.other if task.kind == "FB" else (task.micro, task.stage)
        if task.kind in {"B", "I", "FB"} and back is not None:
            micro, stage = back
            needs.append(("F", micro, stage))
            if stage + 1 < chunks:
                needs.append(("I", micro, stage + 1))
        if task.kind == "W":
            needs.append(("I", task.micro, task.stage))
        times = [arrival(k, rank) for k in needs]
        return None if None in times else max((t for t in times if t is not None), default=0.0)

    moved = True
    while moved:
        moved = False
        for r in range(ranks):
            while at[r] < len(queue[r]) and (when := ready(queue[r][at[r]], r)) is not None:
                task = queue[r][at[r]]
                start = max(free[r], when)
                end = start + _seconds(task, forward_s, input_s, weight_s)
                slots.append(Slot(r, task, start, end))
                if task.kind in {"F", "FB"}:
                    done["F", task.micro, task.stage] = end
                if task.kind in {"B", "I"}:
                    done["I", task.micro, task.stage] = end
                elif task.other is not None:
                    done["I", task.other[0], task.other[1]] = end
                free[r] = end
                at[r] += 1
                moved = True
    if any(at[r] < len(queue[r]) for r in range(ranks)):
        raise SpecError(f"schedule {schedule} deadlocks with p {ranks}, v {chunks // ranks}, m {m}")
    return Timeline(tuple(slots), ranks)


def _seconds(task: Task, forward_s: Sequence[float], input_s: Sequence[float], weight_s: Sequence[float]) -> float:
    c = task.stage
    if task.kind == "FB":
        assert task.other is not None
        b = task.other[1]
        return forward_s[c] + input_s[b] + weight_s[b]
    return {"F": forward_s[c], "I": input_s[c], "W": weight_s[c], "B": input_s[c] + weight_s[c]}[task.kind]
