from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.report import format as fmt


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (fmt.memory, 85.5e9, "85.5 GB"),
        (fmt.memory, 1.2345e12, "1,234.5 GB"),
        (fmt.memory, 131072, "131.1 kB"),
        (fmt.memory, 2.1e6, "2.1 MB"),
        (fmt.memory, 0, "0.0 GB"),
        (fmt.gigabytes, 4.7e6, "0.0047"),
        (fmt.seconds, 54.12, "54.1 s"),
        (fmt.seconds, 1234.5, "1,234 s"),
        (fmt.seconds, 3 * 86400, "72.0 h"),
        (fmt.tenths, 61.25e9, "61.2"),
        (fmt.tenths, 280e3, "0.0"),
        (fmt.tenths, -3.76e9, "−3.8"),
        (fmt.seconds, 0.9999, "1.00 s"),
        (fmt.seconds, 0.0123, "12.3 ms"),
        (fmt.seconds, 4.2e-6, "4.20 µs"),
        (fmt.seconds, 0.0, "0 s"),
        (fmt.parameters, 70_553_706_496, "70.55 B"),
        (fmt.parameters, 1.03e12, "1.030 T"),
        (fmt.parameters, 134_515_008, "134.5 M"),
        (fmt.bandwidth, 3.35e12, "3.35 TB/s"),
        (fmt.bandwidth, 50e9, "50.0 GB/s"),
        (fmt.flops, 989.4e12, "989 TFLOP/s"),
        (fmt.count, 2_146_304, "2,146,304"),
        (fmt.count, 575.5, "575.5"),
        (fmt.change, 1.042, "+4.2%"),
        (fmt.change, 0.94, "−6.0%"),
        (fmt.change, 1.0004, "±0.0%"),
        (fmt.change, 0.9996, "±0.0%"),
        (fmt.signed_memory, 9.1e9, "+9.1 GB"),
        (fmt.signed_memory, -0.8e9, "−800.0 MB"),
        (fmt.runs, (20, 20), "2×20"),
        (fmt.runs, (4, 4, 4, 2), "3×4 2"),
        (fmt.runs, (61,), "61"),
    ],
)
def test_numbers_as_people_read_them(function, value, text):
    assert function(value) == text


@pytest.mark.parametrize(("n", "text"), [(1, "1 run"), (0, "0 runs"), (1204, "1,204 runs")])
def test_one_is_singular(n, text):
    assert fmt.plural(n, "run") == text


@given(st.floats(1e-8, 1e6))
def test_seconds_keep_three_significant_digits(s):
    number, unit = fmt.seconds(s).split(" ")
    scale = {"h": 3600.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(s, rel=6e-3)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20))
def test_runs_say_every_stage(layers):
    total = 0
    for part in fmt.runs(layers).split(" "):
        n, _, value = part.rpartition("×")
        total += int(n or 1) * int(value)
    assert total == sum(layers)
