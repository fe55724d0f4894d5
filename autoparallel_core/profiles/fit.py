"""From measured points to the two forms that the cost model evaluates: a roofline with a fixed time, and latency + rate.

Both minimise the soft-L1 distance of the logarithms (√(1+(r/σ)²), so that a few bad rows do not count squared): a grid that
shrinks around its best point finds the valley, damped Gauss-Newton steps its bottom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen

from autoparallel_core.profiles.tables import Array

CEILING = 0.95
"""No fitted efficiency above this: a kernel that seems to do better was measured out of a cache."""
LEAST_SHARE = 0.005
LAUNCH_S = 1e-7
"""No fixed time below this."""
ROWS_USED = 2000
"""Rows that a fit looks at; of longer tables every n-th."""


@frozen
class Roofline:
    """t = fixed + √((FLOPs/(peak·compute))² + (bytes/(bandwidth·memory))²)."""

    compute: float
    memory: float
    fixed_s: float
    rows: int
    median_error: float

    def seconds(self, flops_s: Array, bytes_s: Array) -> Array:
        """From the times at peak."""
        return self.fixed_s + np.hypot(flops_s / self.compute, bytes_s / self.memory)


@frozen
class Line:
    """t = latency + bytes/rate."""

    latency_s: float
    bytes_per_s: float
    rows: int
    median_error: float
    largest_error: float
    """At the largest message."""


def fit_roofline(flops_s: Array, bytes_s: Array, seconds: Array, *, softness: float = 0.1) -> Roofline | None:
    """The two shares and the fixed time; None without a row that the hardware could do.

    Where all rows are bound by one of the two, the other share is not seen by the data and the bound one is all that
    matters; it is then reported as the same.
    """
    possible = seconds >= np.maximum(flops_s, bytes_s)
    step = max(1, int(possible.sum()) // ROWS_USED)
    f, b, t = flops_s[possible][::step], bytes_s[possible][::step], seconds[possible][::step]
    if not len(t):
        return None

    def model(x: Array) -> Array:
        """[G, R] for parameters [G, 3]."""
        return x[:, 2:3] + np.hypot(f / x[:, 0:1], b / x[:, 1:2])

    longest_fixed = max(2.0 * float(t.min()), 2 * LAUNCH_S)
    low, high = np.log([LEAST_SHARE, LEAST_SHARE, LAUNCH_S]), np.log([CEILING, CEILING, longest_fixed])
    best = np.exp(_best(model, t, low, high, softness))
    error = np.abs(model(best[None, :])[0] / t - 1.0)
    compute, memory, fixed = (float(x) for x in best)
    work = np.maximum(f / compute, b / memory)
    if np.all(f / compute < 0.3 * work):
        compute = memory
    elif np.all(b / memory < 0.3 * work):
        memory = compute
    return Roofline(min(compute, CEILING), min(memory, CEILING), fixed, int(possible.sum()), float(np.median(error)))


def fit_line(n_bytes: Array, seconds: Array, most_bytes_per_s: float) -> Line:
    """Latency and rate of messages of R sizes; no rate above ``most_bytes_per_s``."""
    rate = float(np.max(n_bytes / seconds))
    top = min(most_bytes_per_s, 4.0 * rate)

    def model(x: Array) -> Array:
        return x[:, 0:1] + n_bytes / x[:, 1:2]

    low = np.log([LAUNCH_S, rate / 4.0])
    high = np.log([max(2.0 * float(seconds.min()), 2 * LAUNCH_S), max(top, rate / 4.0 * 1.01)])
    best = np.exp(_best(model, seconds, low, high, 0.1))
    error = np.abs(model(best[None, :])[0] / seconds - 1.0)
    return Line(float(best[0]), float(best[1]), len(seconds), float(np.median(error)), float(error[np.argmax(n_bytes)]))


def rising(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Larger messages take no less time: the running maximum irons out noise."""
    at = sorted(points)
    times = np.maximum.accumulate(np.array([t for _, t in at])) if at else np.empty(0)
    return tuple((float(n), float(t)) for (n, _), t in zip(at, times, strict=True))


def _best(model: Callable[[Array], Array], seconds: Array, low: Array, high: Array, softness: float) -> Array:
    """Logarithms of the parameters that fit best, within the box."""

    def residuals(x: Array) -> Array:
        """[G, R] for logarithms [G, D]."""
        return np.asarray(np.log(model(np.exp(x)) / seconds) / softness)

    def score(x: Array) -> Array:
        r = residuals(x)
        return np.asarray(np.sum(np.sqrt(1.0 + r * r) - 1.0, axis=1))

    return _descend(residuals, score, _shrinking_grid(score, low, high), low, high)


def _shrinking_grid(score: Callable[[Array], Array], low: Array, high: Array, *, points: int = 9, rounds: int = 14) -> Array:
    """The best point in a box: a grid over all of it, then ever smaller ones around the best point so far."""
    best, width = (low + high) / 2.0, high - low
    for turn in range(rounds):
        axes = [
            np.clip(np.linspace(b - w / 2.0, b + w / 2.0, points if turn == 0 else 5), lo, hi)
            for b, w, lo, hi in zip(best, width, low, high, strict=True)
        ]
        grid = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)
        best = grid[int(np.argmin(score(grid)))]
        width = width * (0.4 if turn == 0 else 0.7)
    return best


def _descend(
    residuals: Callable[[Array], Array], score: Callable[[Array], Array], start: Array, low: Array, high: Array, steps: int = 40
) -> Array:
    """Levenberg-Marquardt on reweighted squares, clipped to the box; a step that does not improve raises the damping."""
    x, damping, now = start, 1e-2, float(score(start[None, :])[0])
    shift = 1e-5
    for _ in range(steps):
        around = residuals(np.vstack([x, x + shift * np.eye(len(x))]))
        r, jacobian = around[0], (around[1:] - around[0]).T / shift
        weight = 1.0 / np.sqrt(1.0 + r * r)
        normal = jacobian.T @ (jacobian * weight[:, None])
        step = np.linalg.lstsq(normal + damping * np.diag(np.diag(normal)), -jacobian.T @ (weight * r), rcond=None)[0]
        trial = np.clip(x + step, low, high)
        value = float(score(trial[None, :])[0])
        if value < now:
            x, now, damping = trial, value, damping / 4.0
        else:
            damping *= 6.0
            if damping > 1e8:
                break
    return x
