"""The closed loop's own arithmetic: pipelines that share cores, rank correlation, how well a measurement repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.cost.schedule_sim import simulate

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip("closed_loop")


STAGES = st.integers(1, 4).flatmap(
    lambda p: st.tuples(*[st.lists(st.floats(0.01, 2.0), min_size=p, max_size=p) for _ in range(2)])
)


@settings(max_examples=40, deadline=None)
@given(stages=STAGES, m=st.integers(1, 6), width=st.integers(1, 2), cores=st.integers(1, 8))
def test_sharing_lies_between_all_work_divided_and_one_rank_at_a_time(stages, m, width, cores):
    """At least the work over the cores and the schedule with a core for each; with cores for all exactly the latter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from closed_loop_sharing import shared_pipeline_s
    forward, backward = stages
    took = shared_pipeline_s(m, forward, backward, width=width, cores=cores)
    alone = simulate("1f1b", m, forward, backward, [0.0] * len(forward), ranks=len(forward)).end_s
    work = width * m * (sum(forward) + sum(backward))
    assert took >= max(alone, work / cores) * (1 - 1e-9)
    assert took <= alone + work / min(cores, width * len(forward)) + 1e-9  # Graham's bound
    if cores >= width * len(forward):
        assert took == pytest.approx(alone)
    if cores == 1:
        assert took == pytest.approx(work)


def test_a_bubble_is_filled_by_who_waits_for_a_core(loop):
    """Two stages, two micro-batches, one core: eight tasks of a second and no idle one; with two cores six."""
    assert loop.shared_pipeline_s(2, [1.0, 1.0], [1.0, 1.0], width=1, cores=1) == pytest.approx(8.0)
    assert loop.shared_pipeline_s(2, [1.0, 1.0], [1.0, 1.0], width=1, cores=2) == pytest.approx(6.0)


def test_rank_correlation(loop):
    assert loop.tau([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]) == 1.0
    assert loop.tau([(3.0, 1.0), (2.0, 2.0), (1.0, 3.0)]) == -1.0
    assert loop.tau([(1.0, 1.0), (3.0, 2.0), (2.0, 3.0)]) == pytest.approx(1 / 3)
    assert loop.tau([(1.0, 1.0), (3.0, 2.0), (2.0, 2.01)], apart=0.01) == 1.0


def test_a_measurement_repeats_as_well_as_its_halves_agree(loop):
    assert loop.noise([[1.0, 1.1, 3.0, 2.0]]) == pytest.approx(1 - 1 / 1.1)
    assert loop.noise([[2.0, 2.0], [1.0, 4.0], [3.0, 3.0]]) == 0.0
