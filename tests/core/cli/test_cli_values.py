from __future__ import annotations

from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.cli.values import BANDWIDTH, FLOPS, MEMORY, number, one_of, quantity, whole

memory, bandwidth, flops = quantity(MEMORY, "GB"), quantity(BANDWIDTH, "GB/s"), quantity(FLOPS, "TFLOP/s")


@pytest.mark.parametrize(
    ("read", "text", "si"),
    [
        (memory, "80", 80e9),
        (memory, "80GiB", 80 * 2**30),
        (memory, "1.5 TB", 1.5e12),
        (memory, "85899345920", 85899345920.0),
        (bandwidth, "450", 450e9),
        (bandwidth, "400Gb/s", 50e9),
        (bandwidth, "400gbps", 50e9),
        (bandwidth, "900GB/s", 900e9),
        (bandwidth, "5e10", 50e9),
        (flops, "989", 989e12),
        (flops, "989e12", 989e12),
        (flops, "1.98P", 1.98e15),
        (flops, "0.5", 0.5e12),
    ],
)
def test_quantities_become_si(read, text, si):
    assert read(text) == pytest.approx(si)


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (memory, "0", "greater than 0 GB"),
        (memory, "-8", "greater than 0 GB"),
        (memory, "many", "not a number of GB"),
        (memory, "80QB", "unknown unit 'QB'"),
        (memory, "nan", "not a number"),
        (memory, "inf", "not a number"),
        (memory, "1e400", "greater than 0"),
        (bandwidth, "50000000", "neither a plausible number of GB/s nor of SI"),
    ],
)
def test_impossible_quantities_are_refused(read, text, says):
    with pytest.raises(ArgumentTypeError, match=says):
        read(text)


@given(st.integers(-100, 100))
def test_whole_numbers_have_a_least(n):
    if n >= 1:
        assert whole()(str(n)) == n
    else:
        with pytest.raises(ArgumentTypeError, match="at least 1"):
            whole()(str(n))


@pytest.mark.parametrize("text", ["8.0", "eight", "", "8k"])
def test_whole_numbers_are_whole(text):
    with pytest.raises(ArgumentTypeError, match="whole number"):
        whole()(text)


def test_words_suggest_the_nearest():
    assert one_of("training", "inference")("inference") == "inference"
    with pytest.raises(ArgumentTypeError, match="did you mean training"):
        one_of("training", "inference")("trainig")


@pytest.mark.parametrize("text", ["0", "-1", "1.1", "nan", "x"])
def test_numbers_have_bounds(text):
    assert number(above=0, most=1)("0.5") == 0.5
    with pytest.raises(ArgumentTypeError, match=r"must be above 0 and at most 1|is not a number"):
        number(above=0, most=1)(text)
