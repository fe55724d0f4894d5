"""Exposed seconds of context parallelism in one attention layer: how keys and values of the whole sequence meet the queries.

Axis legend: U unique layer keys.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.ops.mesh import Mesh

Array = NDArray[np.float64]


@frozen(eq=False)
class Exchange:
    """What one rank holds of one attention layer, and how long it computes there; all (U,)."""

    kv_bytes: Array
    query_bytes: Array
    """Queries and the attention's result."""
    kv_heads: Array
    """Heads of keys and values on this rank, before the exchange."""
    forward_s: Array
    backward_s: Array


def exposed_s(hw: TrainingHardware, mesh: Mesh, x: Exchange) -> tuple[Array, Array]:
    """Exposed seconds of forward and backward, (U,) each; 0 without context parallelism."""
    kind = hw.problem.software.cp_comm
    forward, backward = {"p2p": _ring, "all_gather": _gather, "a2a": _all_to_all}[kind](hw, mesh, x)
    return np.where(mesh.cp > 1, forward, 0.0), np.where(mesh.cp > 1, backward, 0.0)


def _ring(hw: TrainingHardware, mesh: Mesh, x: Exchange) -> tuple[Array, Array]:
    """Keys and values travel behind the attention of the previous chunk (Ring Attention, arXiv 2310.01889).

    The backward also sends the gradients of both. What the computation of a step cannot hide is exposed.
    """
    step = hw.network.ring_step(x.kv_bytes, mesh.cp, mesh.tp)
    steps = mesh.cp - 1

    def one(total: Array, compute: Array) -> Array:
        return np.maximum(total - compute * steps / mesh.cp, 0.0) + hw.overlap_loss * np.minimum(total, compute)

    return one(steps * step, x.forward_s), one(steps * step * 2.0, x.backward_s)


def _gather(hw: TrainingHardware, mesh: Mesh, x: Exchange) -> tuple[Array, Array]:
    """Every rank gathers all keys and values before its attention (arXiv 2407.21783, section 3.3.2).

    The backward gathers them again and scatters their gradients. Nothing hides it: the attention waits for the last key.
    """
    one = hw.network.gather(x.kv_bytes * mesh.cp, mesh.cp, mesh.tp)
    return one, 2.0 * one


def _all_to_all(hw: TrainingHardware, mesh: Mesh, x: Exchange) -> tuple[Array, Array]:
    """Sequence pieces are traded for heads before the attention and back after it (Ulysses, arXiv 2309.14509, 3.2).

    With fewer heads of keys than ranks, they are sent to every rank whose queries need them.
    """
    kv_bytes = x.kv_bytes * np.maximum(1.0, mesh.cp / np.maximum(x.kv_heads, 1.0))
    one = hw.network.exchange(x.query_bytes + kv_bytes, 1, mesh.cp, mesh.tp, once_per_rank=False)
    # Three exchanges in (queries, keys, values) and one out: the bytes are in ``one`` already, the other three latencies not.
    one = one + 3.0 * hw.network.latency(mesh.cp, mesh.tp)
    return one, one
