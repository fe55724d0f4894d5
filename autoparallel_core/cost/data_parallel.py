"""Gradient reduction, parameter gathering and the optimizer step.

Parameters outside the experts are replicated over dp·cp, experts over the expert-data-parallel ranks
world/(pp·ep·etp). ZeRO, arXiv 1910.02054: reduce-scatter of gradients, all-gather of parameters; FSDP gathers
each layer twice and scatters its gradient every micro-batch (arXiv 2304.11277, section 3).
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.ops.collectives import Network
from autoparallel_core.spec.problem import Problem

Array = NDArray[np.float64]


@frozen(eq=False)
class Groups:
    """Replica groups of a batch of strategies, [S] each."""

    dense_size: Array
    dense_stride: Array
    expert_size: Array
    expert_stride: Array
    shard: Array
    """Ranks over which dense state is sharded."""
    expert_shard: Array

    @classmethod
    def of(cls, *, tp: Array, cp: Array, ep: Array, etp: Array, dp: Array, shard: Array) -> Groups:
        inner = ep * etp
        return cls(
            dense_size=dp * cp,
            dense_stride=tp,
            expert_size=np.maximum(1.0, tp * cp * dp / inner),
            expert_stride=inner,
            shard=shard,
            expert_shard=np.maximum(1.0, shard * tp / inner),
        )


def gradient_bytes(problem: Problem) -> float:
    """Bytes per parameter of the gradient reduction."""
    return 4.0 if problem.software.grad_dtype == "fp32" else 2.0


def reduce_s(net: Network, params: Array, n_bytes: float, size: Array, stride: Array) -> Array:
    """Reduce-scatter (or all-gather) of ``n_bytes`` per parameter over the group."""
    return np.where(size > 1, net.gather(params * n_bytes, size, stride), 0.0)


def zero_exposed_s(problem: Problem, total_s: Array, hide_s: Array) -> Array:
    """Exposed part of a step's reduction or gathering behind ``hide_s`` of computation."""
    if not problem.software.dp_overlap:
        return total_s
    c = problem.constant
    return np.maximum(c("dp_exposed_floor") * total_s, total_s - c("dp_hidden_share") * hide_s)


def overlapped_s(compute_s: Array, comm_s: Array, loss: float) -> Array:
    """Seconds that communication adds to computation running beside it."""
    return np.maximum(comm_s - compute_s, 0.0) + loss * np.minimum(comm_s, compute_s)


def optimizer_s(problem: Problem, local_params: Array, offload: NDArray[np.int64], hbm_bytes_per_s: float) -> Array:
    """Adam over the local shard; offloaded state also crosses the host link both ways and is updated in host memory."""
    c = problem.constant
    on_device = local_params * c("optimizer_bytes_per_param") / hbm_bytes_per_s
    transfer = local_params * (problem.constant("memory_grad_bytes") + 2.0) / c("offload_link_bytes_per_s")
    host = local_params * 28.0 / (c("host_memory_bytes_per_s") / problem.cluster.gpus_per_node)
    return np.where(offload > 0, transfer + host, on_device) + c("optimizer_fixed_s")
