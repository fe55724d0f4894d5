"""Memory of engines whose sharded fp32 parameters are the master weights (fully sharded training).

The core counts 16-bit weights and 12 bytes of optimizer state (master and two moments) per parameter. Under ZeRO-3
these engines keep no 16-bit copy of the shard, only the gathered layers, so that 16 bytes per parameter over the
shard group remain with fp32 gradients (FSDP, arXiv 2304.11277, section 4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from autoparallel_core.cost.layer import parameters
from autoparallel_core.ops.mesh import KEYS, Mesh
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def no_separate_master(problem: Problem, batch: StrategyBatch) -> Mapping[str, NDArray[np.float64]]:
    """The 16-bit shard that ZeRO-3 does not keep, as negative bytes: float64[S]; an average over pipeline stages."""
    if problem.training.task == "lora":
        return {}
    keys, inverse = batch.unique(KEYS)
    mesh = Mesh.of(keys, problem.training.seq_len)
    dense, expert = np.zeros(len(keys)), np.zeros(len(keys))
    arch = problem.arch
    parts = [(layer.blocks, len(where)) for layer, where in arch.layer_classes()]
    parts += [((arch.prologue, arch.epilogue), 1), *((layer.blocks, 1) for layer in arch.mtp)]
    for blocks, times in parts:
        d, e, _ = parameters(blocks, mesh)
        dense += times * d
        expert += times * e
    shard = np.maximum(batch.shard, 1).astype(np.float64)
    expert_shard = np.maximum(shard * batch.tp / (batch.ep * batch.etp), 1.0)
    sharded = (dense[inverse] / shard + expert[inverse] / expert_shard) / batch.pp
    saved = -sharded * problem.constant("memory_weight_bytes")
    return {"no 16-bit shard beside the fp32 one": np.where(batch.zero == 3, saved, 0.0)}
