"""The timeline of a training step as Chrome trace events, which chrome://tracing and ui.perfetto.dev open.

Format: Trace Event Format (Google), complete events ("ph": "X") in microseconds, one process per pipeline rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autoparallel_core.cost.chunk_times import chunk_times
from autoparallel_core.cost.schedule_sim import Timeline, simulate
from autoparallel_core.cost.stages import cut_layout
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

MOST_TASKS = 100_000
"""Tasks of all ranks that are simulated; more micro-batches than that repeat what is seen."""
NAMES = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient", "FB": "forward and backward"}
AFTER = ("dp_comm", "fsdp_comm", "optimizer", "straggler")
"""Causes of the step outside the pipeline, shown after it."""


def timeline(problem: Problem, strategy: Strategy, cut: StageCut | None = None) -> tuple[Timeline, int]:
    """The simulated pipeline of a strategy (with the stages of ``cut``), and how many micro-batches it shows.

    Raises:
        SpecError: the schedule does not exist for these stages and micro-batches.
    """
    times = chunk_times(problem, strategy, None if cut is None else cut_layout(problem.arch, strategy.pp, cut))
    all_micro = problem.training.global_batch_size // (strategy.mbs * strategy.dp)
    most = max(MOST_TASKS // (2 * len(times.layers)), 4 * strategy.pp)
    shown = all_micro if all_micro <= most else most - most % strategy.pp
    run = simulate(
        problem.software.pipeline_schedule, shown, times.forward_s, times.input_s, times.weight_s, ranks=strategy.pp,
        transfer_s=times.transfer_s,
    )  # fmt: skip
    return run, shown


def trace_events(
    problem: Problem, strategy: Strategy, host: Host | None = None, *, cut: StageCut | None = None
) -> list[dict[str, Any]]:
    """Events of one training step; ``cut`` gives the stages where they are not the usual ones.

    Raises:
        SpecError: the schedule does not exist for these stages and micro-batches.
    """
    run, shown = timeline(problem, strategy, cut)
    layout = None if cut is None else cut_layout(problem.arch, strategy.pp, cut)
    figures = evaluate(problem, StrategyBatch.of([strategy]), host, layout=layout)
    assert figures.training is not None
    micro_batches = int(figures.training.micro_batches[0])
    events: list[dict[str, Any]] = []
    for rank in range(run.ranks):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"pipeline rank {rank}"}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    for slot in run.slots:
        task = slot.task
        args: dict[str, Any] = {"micro-batch": task.micro, "virtual stage": task.stage}
        if task.other is not None:
            args |= {"backward micro-batch": task.other[0], "backward virtual stage": task.other[1]}
        events.append(
            _event(f"{task.kind}{task.micro}", NAMES[task.kind], slot.rank, slot.start_s, slot.end_s - slot.start_s, args)
        )
    at = run.end_s
    for cause in AFTER:
        seconds = float(figures.seconds[cause][0]) if cause in figures.seconds else 0.0
        if seconds > 0:
            events += [_event(cause, "step", rank, at, seconds, {}) for rank in range(run.ranks)]
            at += seconds
    note = f"{shown} of {micro_batches} micro-batches" if shown < micro_batches else f"{micro_batches} micro-batches"
    events.append({"ph": "i", "s": "g", "name": note, "pid": 0, "tid": 0, "ts": 0.0})
    return events


def _event(name: str, category: str, rank: int, start_s: float, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": category, "pid": rank, "tid": 0, "ts": start_s * 1e6, "dur": seconds * 1e6, "args": args,
    }  # fmt: skip
