"""Pipeline schedules in closed form: idle time and micro-batches in flight.

Symbols: p stages, v virtual stages per rank, m micro-batches, F forward, B input-gradient and W weight-gradient
time of one micro-batch on one chunk (a whole stage without interleaving). Sources: Narayanan et al., arXiv
2104.04473, section 2.2 (1F1B and interleaved); Qi et al., arXiv 2401.10241, table 2 (ZB-H1); DualPipe in the V shape,
README of the DualPipe repository, table (its PP is 2p chunks here). Held to :mod:`autoparallel_core.cost.schedule_sim`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.cost.stage_costs import Stages

Array = NDArray[np.float64]


def bubble_s(schedule: str, p: Array, v: Array, stages: Stages, of_row: NDArray[np.int64]) -> Array:
    """Idle seconds of the slowest stage per step, [S]."""
    forward_s, backward_s = stages.fill_forward[of_row], stages.fill_backward[of_row]
    whole_s = (stages.forward + stages.backward)[of_row]
    return idle_s(schedule, p, v, forward_s, backward_s, stages.fill_weight[of_row], whole_s)


def idle_s(
    schedule: str, p: Array, v: Array, forward_s: Array, backward_s: Array, weight_s: Array, slowest_s: Array
) -> Array:  # fmt: skip
    """Idle seconds of the slowest stage per step, any shape.

    Args:
        schedule: as in Software.
        p: pipeline stages.
        v: virtual stages per rank.
        forward_s: F of the average chunk in the row that fills the pipeline.
        backward_s: its B + W (and what is recomputed).
        weight_s: its W.
        slowest_s: forward and backward of one micro-batch on the slowest stage, all its chunks.
    """
    chunk_s = forward_s + backward_s
    if schedule == "zero_bubble":
        idle = (p - 1) * (forward_s + backward_s - 2 * weight_s)
    elif schedule == "dualpipe_v":
        # F&B + B + W - 3W with nothing gained from running F and B side by side.
        idle = (p - 1) * (forward_s + 2 * backward_s - 3 * weight_s)
    else:
        # Without interleaving the other stages fill and drain the pipeline, with it the first row of chunks.
        idle = np.where(v > 1, (p - 1) * chunk_s, p * chunk_s - slowest_s)
    return np.where(p > 1, np.maximum(idle, 0.0), 0.0)


def in_flight(schedule: str, p: Array, v: Array, m: Array, stage: Array) -> Array:
    """Micro-batches of one whole stage whose activations ``stage`` holds at the peak."""
    if schedule == "gpipe":
        return m
    if schedule == "dualpipe_v":
        # The README's table: PP + 1 chunks on PP = 2p chunk positions, two chunks being one stage.
        return np.minimum(m, p + 0.5)
    if schedule == "zero_bubble":
        return np.minimum(m, p)
    plain = np.minimum(m, p - stage)
    chunks = np.minimum(m * v, (v - 1) * p + 2 * (p - stage - 1) + 1) / v
    return np.where(v > 1, chunks, plain)
