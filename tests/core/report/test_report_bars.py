from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.report.bars import bar, legend, part_styles, stacked


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, ""), (1.0, "████"), (0.5, "██"), (0.03125, "▏"), (0.0001, "▏"), (0.375, "█▌"), (2.0, "████")]
)
def test_bars_in_eighths(share, text):
    assert bar(share, 4) == text


def test_a_stacked_bar_ends_where_the_sum_does_and_marks_the_capacity():
    styles = part_styles(["weights", "activations"])
    assert stacked({"weights": 20, "activations": 20}, 80, 8, styles).plain == "██▓▓    |"
    assert stacked({"weights": 40, "activations": 40}, 80, 8, styles).plain == "████▓▓▓▓|"
    assert stacked({"weights": 40, "activations": 60}, 80, 8, styles).plain == "████▓▓▓▓|▓▓"


@given(st.lists(st.floats(0, 50), min_size=1, max_size=12), st.integers(5, 60))
def test_the_parts_of_a_bar_add_up(amounts, width):
    parts = [f"p{i}" for i in range(len(amounts))]
    text = stacked(dict(zip(parts, amounts, strict=True)), 100, width, part_styles(parts)).plain
    assert len(text.replace(" ", "").replace("|", "")) == round(sum(amounts) / 100 * width)
    assert text.index("|") == width


def test_the_legend_names_every_part():
    styles = part_styles(["weights", "kv_cache"])
    assert legend(styles, {"weights": "weights", "kv_cache": "KV cache"}).plain == "█ weights  ▓ KV cache"
