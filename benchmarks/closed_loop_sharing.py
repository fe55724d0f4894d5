"""Pipelines whose ranks share the cores of one machine.

The cost model gives every rank a device of its own, and so counts the time in which a pipeline rank waits as lost. Where
there are more ranks than cores a rank that waits leaves its core to the others. A profile that was measured with all ranks
working at once says how long an operator takes in that company; alone it takes cores/ranks of it. Here the schedule runs
with those times, and whoever works at one moment divides the cores.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.cost.schedule_orders import Task, orders


def shared_pipeline_s(
    m: int, forward_s: Sequence[float], backward_s: Sequence[float], *, width: int, cores: int, schedule: str = "1f1b"
) -> float:
    """Seconds until the last of ``m`` micro-batches is through a pipeline without interleaving.

    Args:
        m: micro-batches.
        forward_s: seconds of each stage's forward on a core of its own, [P].
        backward_s: of its backward, [P].
        width: processes of each stage, which work in step.
        cores: of the machine.
        schedule: 1f1b or gpipe.
    """
    p = len(forward_s)
    queues = [list(reversed(queue)) for queue in orders(schedule, p, 1, m)]
    done: set[tuple[str, int, int]] = set()
    left: dict[int, float] = {}
    now = 0.0
    while any(queues) or left:
        for stage in range(p):
            if stage not in left and queues[stage] and _ready(queues[stage][-1], p, done):
                left[stage] = (forward_s if queues[stage][-1].kind == "F" else backward_s)[stage]
        rate = min(1.0, cores / (width * len(left)))
        step = min(left.values())
        now += step / rate
        left = {s: t - step for s, t in left.items()}
        for stage in [s for s, t in left.items() if t <= 1e-12]:
            task = queues[stage].pop()
            done.add((task.kind, task.micro, stage))
            del left[stage]
    return now


def _ready(task: Task, p: int, done: set[tuple[str, int, int]]) -> bool:
    """Whether the inputs of a task are there."""
    if task.kind == "F":
        return task.stage == 0 or ("F", task.micro, task.stage - 1) in done
    return ("F", task.micro, task.stage) in done and (task.stage == p - 1 or ("B", task.micro, task.stage + 1) in done)
