"""From a batch of strategies to time, memory and verdict: the one road that search, check, explain and validate share.

Axis legend: S strategies, P distinct pipeline stages.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from autoparallel_core.cost.stages import StageLayout
from autoparallel_core.cost.training import evaluate_training
from autoparallel_core.cost.training_memory import device_bytes
from autoparallel_core.errors import PluginContract, SpecError
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]


def evaluate(
    problem: Problem, batch: StrategyBatch, host: Host | None = None, *, layout: StageLayout | None = None
) -> Evaluation:
    """Price a batch; engine plugins' deltas of memory and time are added.

    ``layout`` gives training's pipeline stages explicitly, for strategies of its pp and vpp. A calibration of the problem is
    laid on the result.

    Raises:
        SpecError: the GPU lacks the precision or a constant, or the cluster's GPUs are of several kinds.
        PluginContract: a plugin's delta makes a total negative.
    """
    if problem.calibration is not None and problem.mode == "training":
        from autoparallel_core.search.calibrated import calibrated, ideal

        plain = evolve(problem, calibration=None)
        bound = evaluate(ideal(problem), batch, host, layout=layout)
        return calibrated(problem, evaluate(plain, batch, host, layout=layout), bound)
    if problem.cluster.kinds:
        names = ", ".join(k.gpu.name for k in problem.cluster.kinds)
        raise SpecError(
            f"the cluster's GPUs are of several kinds ({names}), and one price does not hold for all; "
            "the planner two_level gives each kind stages of its own (training)"
        )
    if problem.mode == "inference":
        from autoparallel_core.host import host as default_host
        from autoparallel_core.search.evaluate_serving import evaluate_inference

        return evaluate_inference(problem, batch, host or default_host())
    cost = evaluate_training(problem, batch, layout)
    blame: dict[str, str] = {}
    seconds, memory = dict(cost.seconds), dict(cost.memory)
    if host is not None and len(batch):
        seconds, blame = _add(host, "adjust_cost", problem, batch, seconds, cost=dict(cost.seconds))
        memory, more = _add(host, "memory", problem, batch, memory)
        blame |= more
    total = reduce(np.add, seconds.values())
    allocated = reduce(np.add, memory.values())
    reserved, needed = device_bytes(problem, memory)
    capacity = problem.cluster.gpu.memory_bytes
    fits = (needed <= capacity) & (cost.host_bytes_per_node <= problem.cluster.host_memory_bytes_per_node)
    return Evaluation(
        batch=batch,
        seconds=seconds,
        total_s=total,
        tokens_per_s_per_gpu=problem.training.tokens_per_step / total / problem.cluster.n_gpus,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        host_bytes_per_node=cost.host_bytes_per_node,
        capacity_bytes=capacity,
        fits=fits,
        tight=fits & (reserved > problem.constant("tight_below") * capacity),
        memory=memory,
        training=cost,
        blame=blame,
    )


def _add(
    host: Host, hook: str, problem: Problem, batch: StrategyBatch, base: dict[str, Array], **kw: object
) -> tuple[dict[str, Array], dict[str, str]]:
    """Sum every plugin's deltas into ``base``, by cause."""
    out = dict(base)
    blame: dict[str, str] = {}
    for plugin, deltas in host.call("engines", hook, problem=problem, batch=batch, **kw):
        for cause, value in deltas.items():
            out[cause] = out.get(cause, 0.0) + value
            blame[cause] = plugin.name
    if out and np.any(reduce(np.add, out.values()) < 0):
        raise PluginContract(f"hook {hook} of {', '.join(sorted(set(blame.values())))} makes a total negative")
    return out, blame
