"""Activations that wait in host memory between forward and backward.

What a layer keeps goes to the host while the forward pass computes on, and comes back while the backward pass does; the
copy engines take no multiprocessors. What crosses the link for longer than the stage computes is waited for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.cost.stage_costs import Stages
from autoparallel_core.spec.problem import Problem

Array = NDArray[np.float64]


def host_link_bytes_per_s(problem: Problem) -> float:
    """Of each GPU, one way."""
    stated = problem.cluster.gpu.host_link_bytes_per_s
    return problem.constant("offload_link_bytes_per_s") if stated is None else stated * problem.constant("offload_link_share")


def waiting_s(problem: Problem, stages: Stages, of_row: NDArray[np.int64], m: Array) -> Array:
    """Seconds of a step for which the slowest stage waits for copies, [S]."""
    one = stages.offloaded[of_row].max(axis=1) / host_link_bytes_per_s(problem)
    forward, backward = stages.forward[of_row], stages.backward[of_row]
    return np.asarray(m * (np.maximum(one - forward, 0.0) + np.maximum(one - backward, 0.0)))
