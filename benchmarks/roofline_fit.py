"""The two forms that derive_efficiency.py fits: a smooth roofline with a fixed time, and latency plus bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

CEILING = 0.95
"""No fitted efficiency above this: a kernel that seems to do better was measured out of a cache."""


LAUNCH_S = 2e-6
"""No fixed time below that of an empty kernel."""


@dataclass(frozen=True)
class Roofline:
    """t = fixed + √((FLOPs/(peak·compute))² + (bytes/(bandwidth·memory))²)."""

    compute: float
    memory: float
    fixed_s: float
    rows: int
    median_error: float
    p90_error: float

    @property
    def note(self) -> str:
        return f"{self.rows} rows, error {self.median_error:.0%} median, {self.p90_error:.0%} p90"


def fit_roofline(
    flops_s: np.ndarray,
    bytes_s: np.ndarray,
    seconds: np.ndarray,
    *,
    softness: float = 0.1,
    fixed_up_to_s: float = 60e-6,
    fixed_s: float | None = None,
) -> Roofline:
    """Least soft-L1 distance of the logarithms. ``flops_s`` and ``bytes_s`` are the times at peak.

    Rows that beat the hardware are dropped. ``fixed_s`` holds the fixed time instead of fitting it.
    """
    possible = seconds >= np.maximum(flops_s, bytes_s)
    f, b, t = flops_s[possible], bytes_s[possible], seconds[possible]

    def model(x: np.ndarray) -> np.ndarray:
        return x[2] * 1e-6 + np.hypot(f / x[0], b / x[1])

    low, high = LAUNCH_S * 1e6, fixed_up_to_s * 1e6
    if fixed_s is not None:
        low, high = fixed_s * 1e6, fixed_s * 1e6 + 1e-3
    best = least_squares(
        lambda x: np.log(model(x)) - np.log(t),
        [0.5, 0.7, min(max(8.0, low), high)],
        bounds=([0.01, 0.02, low], [CEILING, CEILING, high]),
        loss="soft_l1",
        f_scale=softness,
    ).x
    error = np.abs(model(best) / t - 1)
    return Roofline(
        float(best[0]), float(best[1]), float(best[2]) * 1e-6, len(t), float(np.median(error)), float(np.quantile(error, 0.9))
    )


@dataclass(frozen=True)
class Curve:
    """t = latency + share·bytes/bus; ``knots`` where that is off by more than a tenth."""

    ranks: int
    bus_bytes_per_s: float
    latency_s: float
    rows: int
    median_error: float
    knots: tuple[tuple[int, float], ...] = ()


def fit_curve(ranks: int, share: float, size: np.ndarray, seconds: np.ndarray, *, knots: tuple[int, ...] = ()) -> Curve:
    """Latency and bandwidth by least soft-L1 distance of the logarithms.

    Knots are medians of the rows at each of the given sizes, kept when the curve is off by more than a tenth: in the
    median, or for the largest message.
    """

    def model(x: np.ndarray) -> np.ndarray:
        return x[0] * 1e-6 + share * size / (x[1] * 1e9)

    best = least_squares(
        lambda x: np.log(model(x)) - np.log(seconds),
        [float(seconds.min()) * 1e6, float(np.max(share * size / seconds)) / 1e9],
        bounds=([0.0, 0.01], [1e4, 1e5]),
        loss="soft_l1",
        f_scale=0.1,
        x_scale=[10.0, 100.0],
    ).x
    off = np.abs(model(best) / seconds - 1)
    error = float(np.median(off))
    points: tuple[tuple[int, float], ...] = ()
    if max(error, off[np.argmax(size)]) > 0.1:
        at = [(k, seconds[size == k]) for k in knots]
        points = _rising([(k, float(np.median(t))) for k, t in at if len(t)])
    return Curve(ranks, float(best[1]) * 1e9, float(best[0]) * 1e-6, len(size), error, points)


def _rising(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Larger messages take no less time: the running maximum irons out noise of a few percent."""
    times = np.maximum.accumulate([t for _, t in points]) if points else []
    return tuple((k, float(t)) for (k, _), t in zip(points, times, strict=True))
