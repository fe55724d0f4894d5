"""Memory of a training step per pipeline stage, by cause.

Axis legend: S strategies, P distinct stages (padded).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.cost.data_parallel import Groups
from autoparallel_core.cost.hardware import LOW_PRECISION, TrainingHardware
from autoparallel_core.cost.pipeline import in_flight
from autoparallel_core.cost.stage_costs import Stages
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]
MEMORY_CAUSES = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "gathered")
PASSING = ("activations", "logits")
"""Causes whose blocks come and go within a step."""


def stage_memory(
    problem: Problem, hw: TrainingHardware, batch: StrategyBatch, of_row: NDArray[np.int64], stages: Stages, groups: Groups,
    m: Array,
) -> tuple[dict[str, Array], Array]:  # fmt: skip
    """Bytes by cause on every distinct stage [S, P], and the host's bytes per node [S]."""
    c = problem.constant
    zero = batch.zero[:, None]
    dense, expert = stages.dense_params[of_row], stages.expert_params[of_row]
    sharded = dense / groups.shard[:, None] + expert / groups.expert_shard[:, None]
    local = dense + expert
    trained = 0.0 if hw.frozen_weights else 1.0
    state = np.where(zero >= 1, sharded, local) * c("memory_optimizer_bytes") * trained
    pp, vpp = batch.pp[:, None].astype(np.float64), batch.vpp[:, None].astype(np.float64)
    index = stages.stage_index[of_row]
    flight = in_flight(problem.software.pipeline_schedule, pp, vpp, m[:, None], np.maximum(index, 0.0))
    offload = batch.offload[:, None] > 0
    largest = stages.largest_matrix[of_row][:, None]
    exists = index >= 0
    gathered = np.where(zero == 3, c("fsdp_gathered_layers") * 2.0 * _largest_layer(stages, of_row)[:, None], 0.0)
    memory = {
        "weights": np.where(zero == 3, sharded, local) * c("memory_weight_bytes"),
        "gradients": np.where(zero >= 2, sharded, local) * gradient_buffer_bytes(problem) * trained,
        "optimizer": np.where(offload, 0.0, state),
        "activations": stages.saved[of_row] * flight + stages.live[of_row],
        "logits": stages.logits[of_row],
        "transient": np.where(exists, largest * c("memory_largest_matrix_bytes"), 0.0),
        "gathered": np.where(exists & (groups.shard[:, None] > 1), gathered, 0.0),
    }
    away = np.where(offload, state, 0.0) + stages.offloaded[of_row] * flight
    return memory, away.max(axis=1) * min(problem.cluster.gpus_per_node, problem.cluster.n_gpus)


def gradient_buffer_bytes(problem: Problem) -> float:
    """Bytes per parameter of accumulated gradients.

    Low-precision recipes that reduce in 16 bit also accumulate there; runs in 16 bit keep the engine's buffer.
    """
    wide = problem.constant("memory_grad_bytes")
    low = problem.training.precision in LOW_PRECISION
    return min(wide, 2.0) if low and problem.software.grad_dtype == "bf16" else wide


def device_bytes(problem: Problem, memory: Mapping[str, Array]) -> tuple[Array, Array]:
    """What the device shows in use, and what it must have: (reserved, needed), [S].

    Before it fails the allocator gives its cached blocks back (PyTorch, CUDA semantics, memory management), so they do not
    decide whether a run fits.
    """
    above, capacity = overheads(problem, memory), problem.cluster.gpu.memory_bytes
    needed = reduce(np.add, memory.values()) + above["context"]
    reserved = needed + above["allocator_slack"]
    return np.where(needed <= capacity, np.minimum(reserved, capacity), reserved), needed


def overheads(problem: Problem, memory: Mapping[str, Array]) -> dict[str, Array]:
    """What lies above the allocated bytes, of any shape: the context with its libraries and communicators, and blocks that
    the caching allocator would hold if there were room, which grow with the activations that come and go.
    """
    c, gpu = problem.constant, problem.cluster.gpu
    shape = np.shape(next(iter(memory.values())))
    passing = sum((memory[k] for k in PASSING if k in memory), np.zeros(shape))
    context = np.full(shape, gpu.training.get("context_bytes", c("memory_context_bytes")))
    return {"context": context, "allocator_slack": passing * c("memory_allocator_slack")}


def _largest_layer(stages: Stages, of_row: NDArray[np.int64]) -> Array:
    key = stages.of_key[of_row]
    sizes = [cost.dense_params + cost.expert_params for cost in (*stages.pieces.classes, stages.pieces.epilogue)]
    return np.asarray(np.max(sizes, axis=0)[key])
