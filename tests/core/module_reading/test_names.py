"""Names gathered by repeated layers say exactly the names that went in."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.module_reading.names import Regions, labels, plain, ranges


@pytest.mark.parametrize(
    ("numbers", "text"), [([0, 1, 2, 3], "0…3"), ([0, 1], "0,1"), ([5], "5"), ([0, 2, 3, 4, 9], "0,2…4,9"), ([3, 1, 2, 2], "1…3")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_numbers_of_modules_are_gathered_and_those_of_operators_are_not() -> None:
    names = [f"layers.{i}.wq/mm.1" for i in range(3)] + ["norm/mul.1", "net.0.weight", "net.2.weight"]
    assert labels(names) == ["layers.0…2.wq/mm.1", "norm/mul.1", "net.0,2.weight"]
    assert plain("layers.10.experts.3.w1.weight") == "layers.*.experts.*.w1.weight"
    assert plain("conv2d.weight") == "conv2d.weight"


def expanded(text: str) -> set[str]:
    """Every name that a label stands for."""
    parts = re.split(r"((?:\d+(?:…\d+)?)(?:,\d+(?:…\d+)?)*)", text)
    choices = [numbers(p) if i % 2 else [p] for i, p in enumerate(parts)]
    return {"".join(c) for c in product(*choices)}


def numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("…")
        found += [str(i) for i in range(int(first), int(last or first) + 1)]
    return found


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1))
def test_labels_stand_for_the_names_and_no_others(pairs: set[tuple[int, int]]) -> None:
    names = {f"layers.{a}.experts.{b}.up" for a, b in pairs}
    found = [expanded(text) for text in labels(sorted(names))]
    assert set.union(*found) == names
    assert sum(map(len, found)) == len(names)


def test_a_region_stands_for_all_its_layers() -> None:
    regions = Regions(
        {
            "layers.*": ["layers.0", "layers.1", "layers.2"],
            "layers.*'": ["layers.3", "layers.4"],
            "layers.*.experts.*": ["layers.*.experts.0", "layers.*.experts.1", "layers.*.experts.2"],
        }
    )
    assert regions.key("layers.2.wq/mm") == regions.key("layers.0.wq/mm") == "layers.*.wq/mm"
    assert regions.key("layers.4.wq/mm") == "layers.*'.wq/mm"
    assert regions.label("layers.0.wq/mm") == "layers.0…2.wq/mm"
    assert regions.label("layers.3.wq/mm") == "layers.3,4.wq/mm"
    assert regions.label("layers.1.experts.1.up/mm") == "layers.0…2.experts.0…2.up/mm"
    assert regions.label("norm/mul.1") == "norm/mul.1"
