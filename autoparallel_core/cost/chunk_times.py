"""Times of every virtual stage of one strategy: what the schedule simulator runs on.

Axis legend: C virtual stages.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.stage_costs import STAGE_KEYS, Stages, again_of, price_layers
from autoparallel_core.cost.stages import StageLayout
from autoparallel_core.ops.mesh import KEYS
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch


@frozen
class ChunkTimes:
    """Seconds of one micro-batch by virtual stage, [C] each."""

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    """Input gradients, with what is recomputed for them."""
    weight_s: tuple[float, ...]
    """Weight gradients."""
    transfer_s: float
    """What of a send to the next stage is exposed."""
    layers: tuple[int, ...]


def chunk_times(problem: Problem, strategy: Strategy, layout: StageLayout | None = None) -> ChunkTimes:
    """Price one strategy's virtual stages; ``layout`` replaces the usual spread of layers."""
    hw = TrainingHardware.of(problem)
    batch = StrategyBatch.of([strategy])
    keys, _ = batch.unique(STAGE_KEYS)
    layer_keys, of_key = keys.unique(KEYS)
    pieces = price_layers(problem, hw, layer_keys)
    stages = Stages.build(problem, hw, keys, of_key, pieces, layout)
    (split,) = stages.layouts.values()
    class_of = {i: c for c, (_, where) in enumerate(problem.arch.layer_classes()) for i in where}
    again, held = again_of(keys), _layers_by_stage(split, class_of, len(pieces.classes))
    forward, inputs, weights = (np.zeros(split.chunks) for _ in range(3))
    start = 0
    for chunk, n in enumerate(split.chunk_layers):
        stage, here = split.stage_of(chunk), [class_of[i] for i in range(start, start + n)]
        shares = again.shares(held[stage], None if split.full_by_stage is None else split.full_by_stage[stage])
        costs = [pieces.classes[c] for c in here]
        repeated = sum(float(again.seconds(pieces.classes[c], of_key, shares[c])[0]) for c in here)
        if chunk == 0:
            costs.append(pieces.prologue)
        if chunk == split.chunks - 1:
            costs += [pieces.epilogue, *pieces.mtp]
        forward[chunk] = sum(float(cost.forward_s[0]) for cost in costs)
        weights[chunk] = sum(float(cost.weight_grad[0]) for cost in costs)
        inputs[chunk] = sum(float(cost.backward_s[0]) for cost in costs) - weights[chunk] + repeated
        start += n
    return ChunkTimes(
        tuple(forward), tuple(inputs), tuple(weights), float(stages.p2p[0]) / (2.0 * strategy.vpp), split.chunk_layers
    )


def _layers_by_stage(split: StageLayout, class_of: Mapping[int, int], n_classes: int) -> NDArray[np.float64]:
    """Layers by stage and class, [all stages, layer classes]."""
    held = np.zeros((len(split.layers_per_stage), n_classes))
    start = 0
    for chunk, n in enumerate(split.chunk_layers):
        for i in range(start, start + n):
            held[split.stage_of(chunk), class_of[i]] += 1
        start += n
    return held
