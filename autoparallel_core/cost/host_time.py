"""Time in which the GPU waits for the host: launches that outlast the kernels, and synchronisations.

The host runs ahead of the GPU as long as a layer's kernels take longer than launching them; a layer with routed
experts also reads token counts back, which drains the queue.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.spec.problem import Problem

Array = NDArray[np.float64]


@frozen
class HostModel:
    """Seconds per layer and forward pass; the backward launches twice as much."""

    launch_s: float
    launch_moe_s: float
    gap_s: float
    gap_moe_s: float

    @classmethod
    def of(cls, problem: Problem) -> HostModel:
        c, soft = problem.constant, problem.software
        if soft.launch_blocking:
            return cls(0.0, 0.0, c("host_blocking_layer_s"), c("host_blocking_layer_s") + c("host_moe_gap_s"))
        left = {"none": 1.0, "partial": c("host_graph_partial"), "full_iteration": c("host_graph_full")}[soft.cuda_graph]
        return cls(c("host_layer_s") * left, c("host_moe_layer_s") * left, c("host_gap_s") * left, c("host_moe_gap_s") * left)

    def wait_s(self, kernels_s: Array, *, routed: bool, passes: float) -> Array:
        """Exposed wait beside ``kernels_s`` of GPU work."""
        launch = passes * (self.launch_moe_s if routed else self.launch_s)
        return np.maximum(launch - kernels_s, 0.0) + passes * (self.gap_moe_s if routed else self.gap_s)
