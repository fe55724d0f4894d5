"""Time in which the GPU waits for the host: launches that outlast the kernels, and synchronisations.

The host runs ahead of the GPU as long as a layer's kernels take longer than launching them; a layer with routed
experts also reads token counts back, which drains the queue.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.hardware import LOW_PRECISION
from autoparallel_core.spec.problem import Problem

Array = NDArray[np.float64]


@frozen
class HostModel:
    """Seconds of the host that the kernels may or may not cover."""

    launch_s: float
    """Per operator launched."""
    gap_s: float
    """Per layer and pass, in whatever case."""
    gap_moe_s: float
    """The same of a layer with routed experts."""
    sharded_s: float = 0.0
    """Per tensor-parallel layer and pass: what dispatching its operators as sharded tensors adds."""
    sharded_ends_s: float = 0.0
    """The same of embedding, head and loss together."""
    blocking: bool = False
    """Nothing of it runs ahead of the kernels."""

    @classmethod
    def of(cls, problem: Problem) -> HostModel:
        c, soft = problem.constant, problem.software
        sharded = c("host_sharded_layer_s") if soft.sharded_dispatch and soft.elementwise == "eager" else 0.0
        ends = sharded * c("host_sharded_ends")
        if soft.launch_blocking:
            # Every kernel waits for its launch: nothing runs ahead.
            blocked = c("host_blocking_layer_s")
            return cls(0.0, blocked, blocked + c("host_moe_gap_s"), sharded, ends, blocking=True)
        left = {"none": 1.0, "partial": c("host_graph_partial"), "full_iteration": c("host_graph_full")}[soft.cuda_graph]
        # The other micro-batch's kernels fill the gaps that a synchronisation of this one leaves.
        moe = c("host_moe_gap_s") * (c("ep_overlap_exposed") if soft.ep_overlap else 1.0)
        if problem.training.precision in LOW_PRECISION:
            moe *= 2.0  # every expert GEMM has a cast beside it to launch
        return cls(c("host_launch_s") * left, 0.0, moe * left, sharded * left, ends * left)

    def ends_wait_s(self, kernels_s: Array, passes: float, *, tp: Array | float) -> Array:
        """Exposed wait for dispatching the sharded operators of embedding, head and loss, beside their kernels."""
        sharded = np.where(np.asarray(tp) > 1, passes * self.sharded_ends_s, 0.0)
        return np.maximum(sharded - (0.0 if self.blocking else kernels_s), 0.0)

    def wait_s(self, kernels_s: Array, launches: Array, passes: float, *, routed: bool, tp: Array | float = 1.0) -> Array:
        """Exposed wait beside ``kernels_s`` of GPU work, for ``launches`` operators of a layer over ``tp`` ranks."""
        gap = self.gap_moe_s if routed else self.gap_s
        sharded = np.where(np.asarray(tp) > 1, passes * self.sharded_s, 0.0)
        hidden = 0.0 if self.blocking else kernels_s
        return np.maximum(launches * self.launch_s + sharded - hidden, 0.0) + passes * gap
