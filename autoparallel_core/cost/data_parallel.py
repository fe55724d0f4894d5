"""Gradient reduction, parameter gathering and the optimizer step.

Parameters outside the experts are replicated over dp·cp, experts over the expert-data-parallel ranks
world/(pp·ep·etp). ZeRO, arXiv 1910.02054: reduce-scatter of gradients, all-gather of parameters; FSDP gathers
each layer twice and scatters its gradient every micro-batch (arXiv 2304.11277, section 3).
Axis legend: S strategies, U unique stage keys.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.stage_costs import FULL, Stages
from autoparallel_core.ops.collectives import Network
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

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


def bucketed_s(net: Network, params: Array, n_bytes: float, size: Array, stride: Array, bucket: float) -> Array:
    """Reduce-scatter (or all-gather) of ``n_bytes`` per parameter over the group, one call per ``bucket`` parameters."""
    calls = np.ceil(params / bucket)
    seconds = net.gather(params * n_bytes, size, stride) + (calls - 1) * net.ring_latency(size, stride)
    return np.where(size > 1, seconds, 0.0)


def exposed_s(problem: Problem, comm_s: Array, hide_s: Array) -> Array:
    """What communication adds to computation of ``hide_s`` running beside it: the rest, and a share lost to contention."""
    if not problem.software.dp_overlap:
        return comm_s
    return np.maximum(comm_s - hide_s, 0.0) + problem.constant("overlap_loss") * np.minimum(comm_s, hide_s)


def optimizer_s(problem: Problem, local_params: Array, offload: NDArray[np.int64], hbm_bytes_per_s: float) -> Array:
    """Adam over the local shard; offloaded state also crosses the host link both ways and is updated in host memory."""
    c = problem.constant
    on_device = local_params * c("optimizer_bytes_per_param") / hbm_bytes_per_s
    ranks = min(problem.cluster.gpus_per_node, problem.cluster.n_gpus)
    transfer = local_params * (c("memory_grad_bytes") + c("dp_param_bytes")) / c("offload_link_bytes_per_s")
    host = local_params * c("host_optimizer_bytes_per_param") * ranks / c("host_memory_bytes_per_s")
    return np.where(offload > 0, transfer + host, on_device) + c("optimizer_fixed_s")


def reduction_s(
    problem: Problem, hw: TrainingHardware, batch: StrategyBatch, of_row: NDArray[np.int64], stages: Stages, groups: Groups,
    m: Array,
) -> dict[str, Array]:  # fmt: skip
    """Exposed reduction and gathering by ZeRO stage, [S] by cause."""
    net, zero, bucket = hw.network, batch.zero, problem.constant("dp_bucket_params")
    trained = 0.0 if hw.frozen_weights else 1.0
    parts = (
        (stages.dense[of_row] * trained, groups.dense_size, groups.dense_stride, groups.shard),
        (stages.expert[of_row] * trained, groups.expert_size, groups.expert_stride, groups.expert_shard),
    )
    grad, param = gradient_bytes(problem), problem.constant("dp_param_bytes")
    whole, scatter, gather = (np.zeros(len(batch)) for _ in range(3))
    for params, size, stride, shard in parts:
        calls = np.ceil(params / bucket)
        whole += np.where(size > 1, net.all_reduce(params * grad, size, stride, calls=calls), 0.0)
        scatter += bucketed_s(net, params, grad, shard, stride, bucket)
        across = net.all_reduce(params / shard * grad, size / shard, stride * shard, calls=calls)
        scatter += np.where(size > shard, across, 0.0)  # hybrid sharding: the shards of all groups are summed
        gather += bucketed_s(net, params, param, shard, stride, bucket)
    backward, forward = stages.backward[of_row], stages.forward[of_row]
    plain = exposed_s(problem, whole, backward)
    once = exposed_s(problem, gather, forward)
    zero1 = exposed_s(problem, scatter, backward) + once
    zero2 = exposed_s(problem, scatter, backward) * m + once
    out = {"dp_comm": np.select([zero == 0, zero == 1, zero == 2], [plain, zero1, zero2], 0.0), "fsdp_comm": np.zeros(len(batch))}
    rows = np.flatnonzero(zero == 3)
    if len(rows):
        out["fsdp_comm"][rows] = _fully_sharded_s(problem, hw, batch.take(rows), of_row[rows], stages, m[rows])
    return out


def _fully_sharded_s(
    problem: Problem, hw: TrainingHardware, batch: StrategyBatch, of_row: NDArray[np.int64], stages: Stages, m: Array
) -> Array:
    """Per-layer gathers and scatters of fully sharded training, every micro-batch, behind the layer's computation."""
    c, net = problem.constant, hw.network
    key = stages.of_key[of_row]
    f = {n: batch.columns[n].astype(np.float64) for n in ("tp", "cp", "ep", "etp", "dp", "shard")}
    groups = Groups.of(**f)
    again = (batch.recompute == FULL).astype(np.float64)
    total, replica = np.zeros(len(batch)), np.zeros(len(batch))
    trained = 0.0 if hw.frozen_weights else 1.0
    grad, param = gradient_bytes(problem) * trained, c("dp_param_bytes")
    counted = [(cost, stages.counts[of_row, i]) for i, cost in enumerate(stages.pieces.classes)]
    counted += [(cost, np.ones(len(batch))) for cost in stages.pieces.ends]
    replicas = groups.dense_size / f["shard"]
    for cost, n in counted:
        dense, expert = cost.dense_params[key], cost.expert_params[key]
        one = np.where(groups.shard > 1, net.bytes_s(dense, groups.shard, groups.dense_stride), 0.0)
        one = one + np.where(groups.expert_shard > 1, net.bytes_s(expert, groups.expert_shard, groups.expert_stride), 0.0)
        wait = np.where(f["shard"] > 1, net.ring_latency(f["shard"], groups.dense_stride), 0.0)
        forward_s = cost.forward_s[key]
        backward_s = cost.backward_s[key] + again * forward_s
        total += n * exposed_s(problem, one * param + wait, forward_s)
        total += n * exposed_s(problem, one * (param + grad) + (1.0 + trained) * wait, backward_s)
        across = net.all_reduce((dense / f["shard"] + expert / groups.expert_shard) * grad, replicas, f["tp"] * f["shard"])
        replica += n * np.where(replicas > 1, across, 0.0)
    return m * total + exposed_s(problem, replica, stages.backward[of_row])
