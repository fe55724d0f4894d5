"""From observations to lessons: fit each stack, judge the fit by records it has not seen, keep what helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoparallel_core.calibrate.files import Lesson
from autoparallel_core.calibrate.fit import Observation, error_of, fit, left_out_errors, oddities
from autoparallel_core.calibrate.stacks import Stack

JUDGED_FROM = 4
"""Records from which on leave-one-out may reject a calibration."""
WORSE_BY = 0.005


def learn(by_stack: Mapping[Stack, Sequence[Observation]]) -> tuple[Lesson, ...]:
    """One lesson per stack, most records first."""
    ordered = sorted(by_stack.items(), key=lambda item: (-len(item[1]), item[0].words))
    return tuple(learn_one(stack, observations) for stack, observations in ordered)


def learn_one(stack: Stack, observations: Sequence[Observation]) -> Lesson:
    """Fit one stack and judge it."""
    factors = fit(observations)
    steps = [o for o in observations if o.step is not None]
    before = float(np.median(error_of(steps))) if steps else 0.0
    after = float(np.median(error_of(steps, factors))) if steps else 0.0
    left_out = float(np.median(left_out_errors(steps))) if len(steps) > 1 else None
    helps = left_out is None or len(steps) < JUDGED_FROM or left_out <= before + WORSE_BY
    return Lesson(stack, factors, len(observations), before, after, left_out, oddities(factors), helps)
