"""Seconds from collective curves, by hand and as invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.ops.curves import curve_for, curve_seconds
from autoparallel_core.spec.cluster import CollectiveCurve, Gpu

PLAIN = CollectiveCurve(8, 100e9, 10e-6, "t")
BENT = CollectiveCurve(8, 100e9, 10e-6, "t", "measured", ((1e4, 5e-6), (1e6, 20e-6), (1e8, 2e-3)))


def test_latency_and_bandwidth():
    # 8 ranks: an all-reduce of 100 MB moves 175 MB per rank, a gather 87.5 MB
    assert curve_seconds(PLAIN, "all_reduce", 100e6) == pytest.approx(10e-6 + 1.75e-3)
    assert curve_seconds(PLAIN, "all_reduce_custom", 100e6) == pytest.approx(10e-6 + 1.75e-3)
    assert curve_seconds(PLAIN, "all_gather", 100e6) == pytest.approx(10e-6 + 0.875e-3)


def test_knots_bend_it():
    size = np.array([1.0, 1e4, 1e5, 1e6, 1e8, 2e8])
    # 1e5 lies halfway between 1e4 and 1e6 in the logarithm: √(5·20) = 10 µs; beyond the last the rate holds
    assert curve_seconds(BENT, "all_reduce", size) == pytest.approx(np.array([5e-6, 5e-6, 10e-6, 20e-6, 2e-3, 4e-3]))


@given(st.lists(st.floats(0, 1e12), min_size=2, max_size=8).map(sorted), st.sampled_from([PLAIN, BENT]))
def test_more_bytes_never_take_less_time(sizes, curve):
    t = curve_seconds(curve, "reduce_scatter", np.array(sizes))
    assert t.shape == (len(sizes),)
    assert np.all(np.diff(t) >= -1e-15)


def test_the_curve_of_a_group_size():
    two, eight = CollectiveCurve(2, 1e9, 1e-6, "t"), CollectiveCurve(8, 2e9, 1e-6, "t")
    gpu = Gpu("g", "v", 1, 1, 1, {}, 1, 8, 1, 8, 1, collectives={"all_reduce": (eight, two)})
    assert curve_for(gpu, "all_reduce", 2) is two
    assert curve_for(gpu, "all_reduce", 4) is eight
    assert curve_for(gpu, "all_reduce", 16) is eight
    assert curve_for(gpu, "all_gather", 2) is None
