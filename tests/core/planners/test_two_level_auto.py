"""Which planner answers when nobody names one, and that it is never worse than the grid."""

from __future__ import annotations

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from two_level_problems import FIRST, FREE, PLAIN, SAME, arch, problem

from autoparallel_core.planners.exhaustive import grid_search
from autoparallel_core.planners.two_level.layouts import usual_plans
from autoparallel_core.planners.two_level.uneven import automatic_search, uneven_search
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.result import SearchResult
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.space import Space


def same_answer(found: SearchResult, grid: SearchResult) -> bool:
    timeless = {"elapsed_s": 0.0, "chosen": ""}
    return evolve(found, **timeless) == evolve(grid, **timeless)


def test_an_even_model_gets_the_grids_answer_to_the_letter() -> None:
    p = problem(arch((4096,) * 8, vocab=1024), 4, batch=32)
    found = automatic_search(p, Space(), (), top=4)
    assert same_answer(found, grid_search(p, Space(), (), top=4))
    assert found.planner == "grid"
    assert "cut of the layers" in found.chosen


def test_memory_that_binds_by_stage_gets_stages_of_their_own() -> None:
    p = problem(arch((4096,) * 12, vocab=64_000), 8, memory_gb=4.6, batch=64, engine=FIRST)
    space = Space(pp=(4,), zero=(0, 1))
    found = automatic_search(p, space, (), top=3)
    assert found.planner == "two_level"
    assert found.plans[0].stages
    assert found.chosen.startswith("stages of their own size or recompute gain ")
    assert found.baseline is not None
    assert found.plans[0].throughput > 1.01 * found.baseline.throughput


def test_a_small_gain_is_not_bought_with_the_room_in_memory() -> None:
    """2.4% faster, and full: the even plan that leaves a tenth is the answer; a gain beyond five percent is taken."""
    space = Space(pp=(4,), zero=(0, 1))
    p = problem(arch((4096,) * 12, vocab=1000), 8, memory_gb=4.4, batch=64, engine=FIRST)
    found, full = automatic_search(p, space, (), top=3), uneven_search(p, space, (), top=3)
    assert full.baseline is not None
    assert (full.plans[0].verdict, full.baseline.verdict) == ("tight", "fits")
    assert 1.01 < full.plans[0].throughput / full.baseline.throughput < 1.05
    assert found.chosen == "stages of their own size would gain 2.4%, but only by filling the memory"
    assert same_answer(found, grid_search(p, space, (), top=3))
    wider = problem(arch((4096,) * 12, vocab=4000), 8, memory_gb=4.4, batch=64, engine=FIRST)
    assert automatic_search(wider, space, (), top=3).plans[0].verdict == "tight"


def test_an_engine_that_runs_stages_alike_is_not_asked() -> None:
    p = problem(arch((4096,) * 7, vocab=64_000), 4, memory_gb=4.4, engine=PLAIN)
    found = automatic_search(p, Space(), (), top=2)
    assert found.chosen == "plain 1.0 runs every stage alike"
    assert same_answer(found, grid_search(p, Space(), (), top=2))


def test_what_fits_only_with_stages_of_their_own_is_found() -> None:
    space = Space(vpp=(1,), tp=(1,), zero=(0,), offload=(0,), cp=(1,), mbs=(1,), partial_recompute=False)
    chosen = []
    for memory_gb in (1.0, 4.2, 4.4, 4.6, 4.8):
        p = problem(arch((4096,) * 7, vocab=64_000), 4, memory_gb=memory_gb, batch=32, engine=FREE)
        found, grid = automatic_search(p, space, ()), grid_search(p, space, ())
        assert bool(found.plans) >= bool(grid.plans)
        chosen.append(found.chosen)
        if not found.plans:
            assert found.nearest_miss is not None
    assert "nothing fits with the usual stages" in chosen


@given(
    st.sampled_from([4, 8]),
    st.sampled_from([3.6, 4.2, 4.6, 20.0]),
    st.sampled_from([8, 32]),
    st.sampled_from([1024, 64_000, 200_000]),
    st.sampled_from([FREE, FIRST, SAME, PLAIN]),
)
@settings(deadline=None, max_examples=12)
def test_never_worse_than_the_grid(n: int, memory_gb: float, size: int, vocab: int, engine: EngineSpec) -> None:
    p = problem(arch((4096,) * 7, vocab=vocab), n, memory_gb=memory_gb, batch=size, engine=engine)
    found, grid = automatic_search(p, Space(), (), top=1), grid_search(p, Space(), (), top=1)
    assert found.fitting >= grid.fitting
    if found.planner == "grid":
        assert same_answer(found, grid)
    elif grid.plans:
        assert found.plans[0].cost.total_s < simulated_s(p, grid)


def simulated_s(p: Problem, grid: SearchResult) -> float:
    return usual_plans(p, [explain_strategy(p, grid.plans[0].strategy)], None)[0].cost.total_s
