"""The pipeline of a plan event by event, in place of the closed form of its bubble.

Closed forms know the slowest stage and the average; the events also know where the slow stage is, that a light last
stage waits, and that an uneven row of chunks stalls the others. Transfers count, as in the evaluator, as exposed time of
both ends. Schedules without a simulation keep the closed form.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from autoparallel_core.planners.two_level.stage_model import PIPELINE_CAUSES, StageModel
from autoparallel_core.search.result import CostBreakdown, Plan
from autoparallel_core.solve.schedule import makespan

Array = NDArray[np.float64]

SIMULATED = ("1f1b", "gpipe")


def chunk_seconds(model: StageModel, i: int, layers: tuple[int, ...], full: Array) -> tuple[Array, Array]:
    """Forward and backward of every chunk of strategy ``i``; ``full`` layers are recomputed by stage and class."""
    p, v = int(model.batch.pp[i]), int(model.batch.vpp[i])
    ends = np.cumsum(layers)
    counts = (model.prefix[ends] - model.prefix[ends - np.array(layers)]).astype(np.float64)
    of_stage = counts.reshape(v, p, -1).sum(axis=0)
    share = np.divide(full, of_stage, out=np.zeros_like(of_stage), where=of_stage > 0)
    again = (counts * np.tile(share, (v, 1))) @ model.again[i]
    forward = counts @ model.forward[i]
    backward = counts @ (model.time[i] - model.forward[i]) + again
    forward[0] += model.first_forward[i]
    backward[0] += model.first_s[i] - model.first_forward[i]
    forward[-1] += model.last_forward[i]
    backward[-1] += model.last_s[i] - model.last_forward[i]
    return forward, backward


def pipeline_s(model: StageModel, i: int, layers: tuple[int, ...], full: Array) -> float:
    """Seconds of the pipeline of strategy ``i``, see :func:`chunk_seconds`."""
    p, v = int(model.batch.pp[i]), int(model.batch.vpp[i])
    forward, backward = chunk_seconds(model, i, layers, full)
    send = float(model.p2p_s[i]) / (2 * v)
    schedule = model.problem.software.pipeline_schedule
    assert schedule == "1f1b" or schedule == "gpipe"  # noqa: PLR1714  (narrows the type)
    return makespan(forward + send, backward + send, p, int(model.micro_batches[i]), schedule=schedule)


def simulated(plan: Plan, model: StageModel, i: int, layers: tuple[int, ...], full: Array) -> Plan:
    """The plan with its bubble as the events give it; unchanged without a pipeline or where there are no such events."""
    p, v, m = plan.strategy.pp, plan.strategy.vpp, int(model.micro_batches[i])
    unknown = model.problem.software.pipeline_schedule not in SIMULATED or (v > 1 and m % p)
    if p == 1 or unknown or plan.training is None:
        return plan
    seconds = dict(plan.cost.seconds)
    busy = sum(s for c, s in seconds.items() if c in PIPELINE_CAUSES and c != "bubble")
    seconds["bubble"] = max(pipeline_s(model, i, layers, full) - busy, 0.0)
    if "straggler" in seconds:
        before = plan.cost.total_s - seconds["straggler"]
        seconds["straggler"] *= (sum(seconds.values()) - seconds["straggler"]) / before
    total = sum(seconds.values())
    scale = plan.cost.total_s / total
    figures = evolve(
        plan.training,
        step_s=total,
        tokens_per_s_per_gpu=plan.training.tokens_per_s_per_gpu * scale,
        mfu=plan.training.mfu * scale,
        bubble_fraction=seconds["bubble"] / total,
    )
    return evolve(plan, cost=CostBreakdown(seconds), training=figures)
