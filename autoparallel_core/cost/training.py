"""One training step of many strategies: seconds by cause and memory by cause.

Three levels, each on its unique keys and broadcast to the next: layers on (tp, sp, cp, ep, etp, mbs), pipeline
stages on those plus (pp, vpp, recompute), the step on every strategy. Axis legend: S strategies, P distinct
stages (padded).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.activation_offload import waiting_s
from autoparallel_core.cost.data_parallel import Groups, optimizer_s, reduction_s
from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.layer import CAUSES
from autoparallel_core.cost.pipeline import bubble_s
from autoparallel_core.cost.stage_costs import STAGE_KEYS, Stages, price_layers
from autoparallel_core.cost.stages import StageLayout
from autoparallel_core.cost.training_memory import stage_memory
from autoparallel_core.ops.mesh import KEYS
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]


@frozen(eq=False)
class TrainingBatch:
    """What evaluation needs of S strategies."""

    seconds: Mapping[str, Array]
    """By cause, [S]; sums to the step."""
    memory: Mapping[str, Array]
    """Bytes by cause on the stage that decides, [S]."""
    stage_memory: Mapping[str, Array]
    """Bytes by cause on every distinct stage, [S, P]."""
    stage_index: Array
    """Position of each distinct stage, [S, P]; −1 where padded."""
    host_bytes_per_node: Array
    micro_batches: Array
    slowest_stage_s: Array
    layouts: Mapping[tuple[int, int], StageLayout]


def evaluate_training(problem: Problem, batch: StrategyBatch, layout: StageLayout | None = None) -> TrainingBatch:
    """Price a batch; ``layout`` replaces the usual spread of layers. Raises SpecError when the GPU lacks the precision."""
    hw = TrainingHardware.of(problem)
    keys, of_row = batch.unique(STAGE_KEYS)
    layer_keys, of_key = keys.unique(KEYS)
    stages = Stages.build(problem, hw, keys, of_key, price_layers(problem, hw, layer_keys), layout)
    f = {n: batch.columns[n].astype(np.float64) for n in ("tp", "cp", "ep", "etp", "dp", "shard", "pp", "vpp", "mbs")}
    m = problem.training.global_batch_size / (f["mbs"] * f["dp"])
    groups = Groups.of(
        tp=f["tp"], cp=f["cp"], ep=f["ep"], etp=f["etp"], dp=f["dp"], shard=np.where(batch.zero > 0, f["shard"], 1.0)
    )
    seconds = _seconds(problem, hw, batch, of_row, stages, groups, m)
    memory, host = stage_memory(problem, hw, batch, of_row, stages, groups, m)
    worst = reduce(np.add, memory.values()).argmax(axis=1)
    pick = np.arange(len(batch))
    return TrainingBatch(
        seconds=seconds,
        memory={k: v[pick, worst] for k, v in memory.items()},
        stage_memory=memory,
        stage_index=stages.stage_index[of_row],
        host_bytes_per_node=host,
        micro_batches=m,
        slowest_stage_s=(stages.forward + stages.backward)[of_row],
        layouts=stages.layouts,
    )


def _seconds(
    problem: Problem, hw: TrainingHardware, batch: StrategyBatch, of_row: NDArray[np.int64], stages: Stages, groups: Groups,
    m: Array,
) -> dict[str, Array]:  # fmt: skip
    """The step by cause, [S] each."""
    pp, vpp = batch.pp.astype(np.float64), batch.vpp.astype(np.float64)
    seconds = {cause: m * stages.slowest[of_row, i] for i, cause in enumerate(CAUSES)}
    seconds["recompute"] = m * stages.recompute[of_row]
    seconds["pp_p2p"] = m * stages.p2p[of_row]
    seconds["bubble"] = bubble_s(problem.software.pipeline_schedule, pp, vpp, stages, of_row)
    seconds |= reduction_s(problem, hw, batch, of_row, stages, groups, m)
    dense, expert = stages.dense[of_row], stages.expert[of_row]
    trained = 0.0 if hw.frozen_weights else 1.0
    local = np.where(batch.zero > 0, dense / groups.shard + expert / groups.expert_shard, dense + expert) * trained
    seconds["optimizer"] = optimizer_s(problem, local, batch.offload, hw.hbm_bytes_per_s)
    if problem.software.activation_offload_layers:
        seconds["activation_offload"] = waiting_s(problem, stages, of_row, m)
    slow = problem.constant("straggler_per_doubling") * np.log2(max(problem.cluster.n_nodes, 1))
    seconds["straggler"] = reduce(np.add, seconds.values()) * slow
    return seconds
