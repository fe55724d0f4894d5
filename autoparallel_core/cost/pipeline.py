"""Pipeline schedules in closed form: idle time and micro-batches in flight.

Symbols: p stages, v virtual stages per rank, m micro-batches, F forward, B input-gradient and W weight-gradient
time of one micro-batch on one (average) stage. Sources: Narayanan et al., arXiv 2104.04473, section 2.2 (1F1B and
interleaved); Qi et al., arXiv 2401.10241, table 2 (ZB-H1); arXiv 2412.19437, table 2 (DualPipe).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.cost.stage_costs import Stages

Array = NDArray[np.float64]


def bubble_s(schedule: str, p: Array, v: Array, stages: Stages, of_row: NDArray[np.int64]) -> Array:
    """Idle seconds of the slowest stage per step, [S].

    With one chunk per stage the other stages fill and drain the pipeline; with more, only the first row of chunks.
    """
    forward_s, backward_s = stages.fill_forward[of_row], stages.fill_backward[of_row]
    others = p * (forward_s + backward_s) - (stages.forward + stages.backward)[of_row]
    idle_1f1b = np.where(v > 1, (p - 1) * (forward_s + backward_s), others)
    if schedule == "zero_bubble":
        # W fills the drain: (p-1)(F + B - W), with W = B = half of the backward.
        idle_1f1b = (p - 1) * forward_s
    elif schedule == "dualpipe_v":
        # (p/2 - 1)(F&B + B - 3W) of the bidirectional schedule, on its two chunks per rank.
        idle_1f1b = np.maximum(p / 2 - 1, 0.0) * np.maximum(forward_s + backward_s - backward_s, 0.25 * forward_s)
    return np.where(p > 1, np.maximum(idle_1f1b, 0.0), 0.0)


def in_flight(schedule: str, p: Array, v: Array, m: Array, stage: Array) -> Array:
    """Micro-batches of one whole stage whose activations ``stage`` holds at the peak."""
    if schedule == "gpipe":
        return m
    if schedule == "dualpipe_v":
        return np.minimum(m, p + 0.5)
    plain = np.minimum(m, p - stage)
    chunks = np.minimum(m * v, (v - 1) * p + 2 * (p - stage - 1) + 1) / v
    return np.where(v > 1, chunks, plain)
