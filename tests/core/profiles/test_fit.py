from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.profiles.fit import CEILING, fit_line, fit_roofline, rising


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 0.9), st.floats(0.05, 0.9), st.floats(1e-6, 2e-5))
def test_the_roofline_that_made_the_points_is_found(compute, memory, fixed):
    m = np.array([1, 16, 128, 1024, 4096, 16384], dtype=np.float64)
    n = np.array([1024, 4096, 16384], dtype=np.float64)
    mm, nn = (x.ravel() for x in np.meshgrid(m, n))
    flops_s, bytes_s = 2 * mm * nn * 4096 / 1e15, (nn * 4096 * 2 + 2 * mm * (nn + 4096)) / 4e12
    seconds = fixed + np.hypot(flops_s / compute, bytes_s / memory)
    fit = fit_roofline(flops_s, bytes_s, seconds)
    assert fit is not None
    assert fit.median_error < 0.01
    assert fit.compute == pytest.approx(compute, rel=0.05)
    assert fit.memory == pytest.approx(memory, rel=0.05)


def test_rows_that_beat_the_hardware_do_not_count():
    flops_s, bytes_s = np.full(6, 1e-3), np.full(6, 1e-5)
    seconds = np.array([2e-3, 2e-3, 2e-3, 2e-3, 5e-4, 5e-4])
    fit = fit_roofline(flops_s, bytes_s, seconds)
    assert fit is not None
    assert fit.rows == 4
    assert fit.compute == pytest.approx(0.5, rel=0.02)
    assert fit.memory == fit.compute  # the data do not show it
    assert fit_roofline(flops_s, bytes_s, np.full(6, 1e-6)) is None


def test_no_fit_is_above_the_ceiling():
    work = np.geomspace(1e-5, 1e-2, 20)
    fit = fit_roofline(work, work / 10, work * 1.0001)
    assert fit is not None
    assert fit.compute <= CEILING


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-6, 1e-3), st.floats(1e8, 4e11))
def test_latency_and_rate_that_made_the_messages_are_found(latency, rate):
    size = np.geomspace(1e3, 1e9, 20)
    line = fit_line(size, latency + size / rate, 1e12)
    assert line.latency_s == pytest.approx(latency, rel=0.02)
    assert line.bytes_per_s == pytest.approx(rate, rel=0.02)
    assert line.median_error < 0.01


def test_no_line_is_faster_than_the_link():
    size = np.geomspace(1e3, 1e9, 20)
    assert fit_line(size, 1e-5 + size / 4e11, 3e11).bytes_per_s <= 3e11 * 1.001


def test_rising_irons_out_dips():
    assert rising([(4, 2.0), (1, 1.0), (2, 3.0), (8, 4.0)]) == ((1, 1.0), (2, 3.0), (4, 3.0), (8, 4.0))
    assert rising([]) == ()
