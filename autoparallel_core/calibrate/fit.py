"""The factors of one stack from its records: the most probable ones under a prior that says "as predicted".

Each record states log(measured/predicted) of a step; the model says log(scale · Σ share · factor) with the predicted
shares of kernels, collectives, host and prefill. Logarithms of factors have normal priors around zero, records have a
normal error, so few records move little and none moves what the step does not contain. Widths were fitted to published
serving runs (benchmarks/calibration.py). Axis legend: R records, G groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from autoparallel_core.search.calibrated import GROUPS
from autoparallel_core.spec.calibration import Calibration

Array = NDArray[np.float64]

PRIOR: Mapping[str, float] = {
    "scale": 0.1, "kernels": 0.2, "collectives": 0.8, "host": 0.8, "prefill": 0.5, "first_token": 0.4,
}  # fmt: skip
"""Standard deviation of the logarithm of each factor between stacks, before anything is known."""
NOISE, FIRST_TOKEN_NOISE = 0.12, 0.3
"""Standard deviation of what the factors leave unexplained, per record: of steps, and of times to the first token."""
LIMITS: Mapping[str, tuple[float, float]] = {
    "scale": (0.5, 2.0), "kernels": (0.5, 3.0), "collectives": (0.3, 5.0), "host": (0.2, 5.0), "prefill": (0.4, 3.0),
    "first_token": (0.33, 3.0),
}  # fmt: skip
"""What can still be the same software on the same hardware."""
FAR = 2.0
"""A factor further from 1 than so many prior deviations is more likely another configuration than another speed."""
_NAMES = ("scale", *GROUPS)
_STEPS = 30


@frozen(eq=False)
class Observation:
    """One record of a stack."""

    id: str
    shares: Mapping[str, float]
    """Predicted share of the step by group; the rest takes the common scale only."""
    step: float | None
    """log(measured / predicted) of the step or of the time per output token; None: not measured."""
    first_token: float | None = None
    """The same of the time to the first token."""


def fit(observations: Sequence[Observation]) -> Calibration:
    """The most probable factors; all 1 without observations."""
    steps = [o for o in observations if o.step is not None]
    theta = _most_probable(np.array([[o.shares.get(g, 0.0) for g in GROUPS] for o in steps]), np.array([o.step for o in steps]))
    factors = {n: float(np.exp(np.clip(t, *np.log(LIMITS[n])))) for n, t in zip(_NAMES, theta, strict=True)}
    first = np.array([o.first_token for o in observations if o.first_token is not None])
    if len(first):
        shrink = len(first) / (len(first) + (FIRST_TOKEN_NOISE / PRIOR["first_token"]) ** 2)
        factors["first_token"] = float(np.exp(np.clip(shrink * np.median(first), *np.log(LIMITS["first_token"]))))
    return _named(Calibration(), factors)


def _most_probable(shares: Array, measured: Array) -> Array:
    """Logarithms of the factors, [1 + G]: Gauss-Newton on the posterior."""
    theta = np.zeros(len(_NAMES))
    if not len(measured):
        return theta
    precision = np.diag([1.0 / PRIOR[n] ** 2 for n in _NAMES])
    rest = 1.0 - shares.sum(axis=1)
    for _ in range(_STEPS):
        part = shares * np.exp(theta[1:])
        total = part.sum(axis=1) + rest
        jacobian = np.column_stack([np.ones(len(measured)), part / total[:, None]])
        error = measured - theta[0] - np.log(total)
        step = np.linalg.solve(jacobian.T @ jacobian / NOISE**2 + precision, jacobian.T @ error / NOISE**2 - precision @ theta)
        theta = theta + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 1e-9:
            break
    return theta


def predicted_log(o: Observation, factors: Calibration) -> float:
    """Log of the factor that a calibration lays on an observation's step."""
    rest = 1.0 - sum(o.shares.get(g, 0.0) for g in GROUPS)
    return float(np.log(factors.scale * (rest + sum(o.shares.get(g, 0.0) * getattr(factors, g) for g in GROUPS))))


def _named(base: Calibration, factors: Mapping[str, float]) -> Calibration:
    changed: Calibration = evolve(base, **factors)  # type: ignore[arg-type]  # names of factors, which are numbers
    return changed


def error_of(observations: Sequence[Observation], factors: Calibration | None = None) -> Array:
    """Relative errors |predicted/measured − 1| of the steps, with or without a calibration, [R]."""
    of = [(o.step, predicted_log(o, factors) if factors else 0.0) for o in observations if o.step is not None]
    return np.abs(np.exp([by - m for m, by in of]) - 1.0)


def left_out_errors(observations: Sequence[Observation]) -> Array:
    """Errors of each record under the calibration of the others, [R]."""
    steps = [o for o in observations if o.step is not None]
    return np.array([error_of([o], fit([x for x in steps if x is not o]))[0] for o in steps])


def oddities(factors: Calibration) -> tuple[str, ...]:
    """Factors that are hard to believe, as sentences."""
    out = []
    for name in (*_NAMES, "first_token"):
        value = getattr(factors, name)
        low, high = LIMITS[name]
        if value <= low * 1.001 or value >= high * 0.999:
            out.append(f"{name} is at its limit of {value:.2f}")
        elif abs(np.log(value)) > FAR * PRIOR[name]:
            out.append(f"{name} of {value:.2f} is far from 1")
    return tuple(out)
