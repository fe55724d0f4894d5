"""How many requests are in flight at each deployment when the workload does not say.

As many as the cache holds at their full length; under limits on TTFT or TPOT the most that keep them; for the goals
``latency`` and ``cost`` the fewest that serve the request rate asked for; for ``latency`` without a rate one in the whole
cluster. Each is then priced as a closed
loop at that concurrency, so that stating it gives the same figures. Axis legend: S strategies.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_load import Demand, SteadyState, reserved_tokens, steady_state, total_s
from autoparallel_core.cost.serving_memory import ServingMemory
from autoparallel_core.cost.serving_policy import scheduler_limits
from autoparallel_core.search.calibrated import scaled_seconds
from autoparallel_core.spec.calibration import Calibration
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]


def most_per_instance(problem: Problem, batch: StrategyBatch, memory: ServingMemory) -> Array:
    """Sequences that run together on one instance without over-committing its cache or passing the engine's limit; at least 1."""
    reserved = reserved_tokens(problem)
    slots = np.floor(memory.capacity_tokens(reserved) / reserved)
    limit = float(scheduler_limits(problem).max_num_seqs) * batch.attn_dp
    return np.asarray(np.maximum(np.minimum(np.minimum(memory.max_concurrency, slots), limit), 1.0))


def concurrency_of(
    hw: ServingHardware, batch: StrategyBatch, memory: ServingMemory, calibration: Calibration | None = None
) -> Array:
    """Requests in flight over all instances, [S]: the workload's, or what stands in for it (see the module).

    Offline runs keep their cache full and have none: infinite. Limits hold for the calibrated latencies.
    """
    problem, S = hw.problem, len(batch)
    work = problem.inference
    if work.concurrency is not None:
        return np.full(S, float(work.concurrency))
    if work.load == "offline":
        return np.full(S, np.inf)
    most, dp = most_per_instance(problem, batch, memory), batch.dp.astype(np.float64)
    factors = calibration or Calibration()
    capacity = memory.capacity_tokens(reserved_tokens(problem))

    def at(per_instance: Array) -> SteadyState:
        demand = evolve(Demand.of(problem, S), concurrency=per_instance * dp)
        return steady_state(hw, batch, capacity, demand)

    if work.paced and (rate := work.request_rate_per_s) is not None:
        return np.minimum(_largest(lambda n: at(n).requests_per_s < rate, most) + 1.0, most) * dp
    if work.goal == "latency":
        return np.ones(S)
    if work.ttft_limit_s is None and work.tpot_limit_s is None:
        return most * dp

    def keeps(per_instance: Array) -> NDArray[np.bool_]:
        s = at(per_instance)
        ok = np.ones(S, dtype=bool)
        if work.ttft_limit_s is not None:
            ok &= s.ttft_s * factors.first_token <= work.ttft_limit_s
        if work.tpot_limit_s is not None:
            ok &= total_s(scaled_seconds(s.seconds, factors)) <= work.tpot_limit_s
        return ok

    return np.maximum(_largest(keeps, most), 1.0) * dp


def _largest(keeps: Callable[[Array], NDArray[np.bool_]], most: Array) -> Array:
    """The largest whole number from 1 to ``most`` at which a condition that more load only breaks holds; 0: at none."""
    low, high = np.zeros_like(most), most + 1.0
    middle = most  # often the whole range holds
    while np.any(high - low > 1):
        ok = keeps(np.maximum(middle, 1.0))
        open_ = high - low > 1
        low, high = np.where(open_ & ok, middle, low), np.where(open_ & ~ok, middle, high)
        middle = np.floor((low + high) / 2)
    return low
