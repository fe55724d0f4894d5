"""Interleaved pipelines over two kinds of GPU: levelled chunks against every split, and the plans they make."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from test_two_level_kinds import FAST, SLOW, mixed, models_of, on

from autoparallel_core.planners.two_level.kind_chunks import interleaved_kind_cuts, level_over_kinds
from autoparallel_core.planners.two_level.kind_cuts import best_kind_cuts
from autoparallel_core.planners.two_level.kind_plans import kind_plan
from autoparallel_core.planners.two_level.kinds import kinds_search
from autoparallel_core.spec.space import Space


@given(
    st.lists(st.floats(0.1, 3), min_size=2, max_size=6),
    st.lists(st.integers(0, 1), min_size=2, max_size=4),
    st.floats(1, 4),
    st.floats(0, 3),
    st.floats(0, 3),
)
@settings(deadline=None, max_examples=100)
def test_levelled_chunks_have_the_smallest_possible_maximum(
    times: list[float], kinds: list[int], slower: float, first: float, last: float
) -> None:
    before = np.stack([np.concatenate([[0.0], np.cumsum(times)]) * f for f in (1.0, slower)])

    def slowest(split: tuple[int, ...]) -> float:
        ends = np.cumsum(split)
        sums = [before[k][e] - before[k][e - n] for k, e, n in zip(kinds, ends, split, strict=True)]
        sums[0] += first
        sums[-1] += last
        return max(sums)

    split = level_over_kinds(before, np.array(kinds), first, last)
    every = [s for s in product(range(len(times) + 1), repeat=len(kinds)) if sum(s) == len(times)]
    assert sum(split) == len(times)
    assert min(split) >= 0
    assert slowest(split) == pytest.approx(min(map(slowest, every)))


def test_small_batches_gain_by_chunks_and_every_layer_has_its_place() -> None:
    p = on(mixed(FAST, SLOW), layers=24, batch=8)
    text = "tp4 pp4 dp1 {}zero1 mbs1 recompute=full"
    plain, chunked = models_of(p, text.format("")), models_of(p, text.format("vpp2 "))
    one = kind_plan(p, plain, 0, best_kind_cuts(plain, 0, (2, 2), recompute="layer")[0], None)
    cut = interleaved_kind_cuts(chunked, 0, (2, 2), recompute="layer")[0]
    two = kind_plan(p, chunked, 0, cut, None)
    assert (len(cut.layers), len(cut.kinds)) == (8, 4)
    assert sum(cut.layers) == sum(s.n_layers for s in two.stages) == 24
    assert two.training is not None
    assert two.training.layers_per_stage == tuple(s.n_layers for s in two.stages)
    assert two.cost.total_s < one.cost.total_s
    slow = sum(s.n_layers for s in two.stages if s.gpu == "slow")
    assert 0 < slow <= 12
    starts = sorted((a, n) for s in two.stages for a, n in zip(s.first_layers, s.layers, strict=True))
    assert [a for a, _ in starts] == list(np.cumsum([0, *(n for _, n in starts)])[:-1])


def test_chunks_are_never_slower_than_none_in_the_search() -> None:
    p = on(mixed(FAST, SLOW), layers=12, batch=16)
    space = Space(tp=(2, 4), zero=(1,), offload=(0,), cp=(1,), partial_recompute=False)
    both, plain = (kinds_search(p, s, host=None, top=3) for s in (space, evolve(space, vpp=(1,))))
    assert both.plans[0].cost.total_s <= plain.plans[0].cost.total_s
