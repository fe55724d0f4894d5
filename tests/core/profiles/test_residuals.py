from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.profiles.residuals import EXTRAPOLATED, INTERPOLATED, MEASURED, MOST_POINTS, Residuals


def roofline(m, n, k):
    return 5e-6 + np.hypot(2 * m * n * k / 1e15, 2 * (m * k + n * k + m * n) / 4e12)


M, N, K = (x.ravel() for x in np.meshgrid([64.0, 512.0, 4096.0], [1024.0, 8192.0], [1024.0, 8192.0], indexing="ij"))
ERROR = 1.0 + 0.3 * np.sin(M / 500) + 0.1 * (N > 2000)
POINTS = Residuals(np.stack([M, N, K], axis=1), roofline(M, N, K) * ERROR, "bench")


def test_measured_points_are_answered_exactly():
    seconds, marks = POINTS.corrected(roofline, M, N, K)
    assert np.allclose(seconds, POINTS.seconds, rtol=1e-9)
    assert set(marks.tolist()) == {MEASURED}


@settings(max_examples=50, deadline=None)
@given(st.floats(65, 4000), st.floats(1030, 8000), st.floats(1030, 8000))
def test_inside_the_error_lies_between_the_points_errors(m, n, k):
    seconds, marks = POINTS.corrected(roofline, np.array([m]), np.array([n]), np.array([k]))
    ratio = seconds[0] / roofline(m, n, k)
    assert ERROR.min() - 1e-9 <= ratio <= ERROR.max() + 1e-9
    assert marks[0] == INTERPOLATED


def test_outside_the_time_follows_the_roofline_and_is_marked():
    """Ten times the work takes ten times as long; nothing is held at the largest measured shape."""
    m = np.array([4096.0, 40960.0, 409600.0])
    seconds, marks = POINTS.corrected(roofline, m, 8192.0, 8192.0)
    assert marks.tolist() == [MEASURED, EXTRAPOLATED, EXTRAPOLATED]
    assert seconds[2] / seconds[1] == pytest.approx(10.0, rel=0.02)
    assert seconds[1] / roofline(m[1], 8192, 8192) == pytest.approx(seconds[0] / roofline(m[0], 8192, 8192), rel=0.35)
    small, mark = POINTS.corrected(roofline, 1.0, 128.0, 128.0)
    assert mark == EXTRAPOLATED
    assert small < seconds[0] / 10


def test_shapes_broadcast_and_repeat():
    seconds, marks = POINTS.corrected(roofline, np.array([[64.0], [512.0]]), np.array([1024.0, 8192.0, 1024.0]), 1024.0)
    assert seconds.shape == marks.shape == (2, 3)
    assert np.array_equal(seconds[:, 0], seconds[:, 2])


def test_long_tables_are_thinned():
    m = np.arange(1.0, 10001.0)
    many = Residuals.of(np.stack([m, m, m], axis=1), m, "bench")
    assert MOST_POINTS / 2 < len(many.seconds) <= MOST_POINTS
    assert many.seconds.min() == 1.0
