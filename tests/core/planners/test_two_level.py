"""The planner as a whole: never worse than the grid, exact against flat enumeration, honest about the engine."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_builders import mla_moe, rule, training
from two_level_problems import FIRST, FREE, PLAIN, SAME, arch, problem

from autoparallel_core.cost.stages import laid_out
from autoparallel_core.errors import SpecError
from autoparallel_core.planners import two_level
from autoparallel_core.planners.exhaustive import grid_search
from autoparallel_core.planners.two_level.layouts import usual_plans
from autoparallel_core.planners.two_level.uneven import uneven_search
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.result import TIE, Plan, SearchResult
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch

LARGE_HEAD = arch((4096,) * 9, vocab=100_000)


def search(p: Problem, space: Space | None = None, **options: Any) -> SearchResult:
    return uneven_search(p, space or Space(vpp=(1,)), (), **options)


def evaluator_s(p: Problem, plan: Plan) -> float:
    """The evaluator's own step of a plan, its closed form of the bubble included."""
    b = StrategyBatch.of([plan.strategy])
    if not plan.stages:
        return float(evaluate(p, b).total_s[0])
    v = plan.strategy.vpp
    chunks = tuple(plan.stages[c % plan.strategy.pp].layers[c // plan.strategy.pp] for c in range(plan.strategy.pp * v))
    kinds = [layer.kind for layer, _ in p.arch.layer_classes()]
    assert len(set(kinds)) == len(kinds) or len(kinds) == 1, "kinds name classes here"
    full = tuple(tuple(s.recomputed.get(k, 0) for k in kinds) for s in plan.stages)
    return float(evaluate(p, b, layout=laid_out(p.arch, plan.strategy.pp, chunks, full)).total_s[0])


@given(
    st.sampled_from([4, 8]),
    st.sampled_from([3.6, 4.2, 4.6, 20.0]),
    st.sampled_from([8, 32]),
    st.sampled_from([0, 64_000, 200_000]),
    st.sampled_from([FREE, FIRST, SAME, PLAIN]),
)
@settings(deadline=None, max_examples=12)
def test_never_worse_than_the_grid(n: int, memory_gb: float, size: int, vocab: int, engine: EngineSpec) -> None:
    p = problem(arch((4096,) * 7, vocab=vocab or 1024), n, memory_gb=memory_gb, batch=size, engine=engine)
    found, grid = uneven_search(p, Space(), (), top=5), grid_search(p, Space(), (), top=1)
    assert all(x.verdict != "does not fit" for x in found.plans)
    assert found.fitting >= grid.fitting
    if grid.plans:
        assert found.baseline is not None
        fastest = min(found.plans, key=lambda x: x.cost.total_s)
        roomier = fastest.verdict == "fits" and found.baseline.verdict == "tight"  # goes first where both are as fast
        assert fastest.throughput >= found.baseline.throughput * (1 - TIE * roomier)
        own = usual_plans(p, [explain_strategy(p, grid.plans[0].strategy)], None)[0]
        assert found.baseline.cost.total_s <= own.cost.total_s  # the grid's best, simulated like the others


def splits(n: int, parts: int) -> list[tuple[int, ...]]:
    ends = [(0, *cuts, n) for cuts in combinations(range(1, n + 1), parts - 1)]
    return [tuple(b - a for a, b in pairwise(e)) for e in ends]


@pytest.mark.parametrize("memory_gb", [3.4, 3.8, 4.4, 6.0])
def test_equals_flat_enumeration_of_cuts_strategies_and_recompute(memory_gb: float) -> None:
    """Four layers on four GPUs: every degree, every cut, every recompute by stage, priced by the evaluator one by one."""
    p = problem(arch((4096,) * 4, vocab=64_000), 4, memory_gb=memory_gb, batch=8, engine=FREE)
    space = Space(vpp=(1,), zero=(0, 1), offload=(0,), cp=(1,), mbs=(1,))
    every = StrategyBatch.concat(list(enumerate_space(p, space, ())))
    best = np.inf
    for s in {s for s in every if s.recompute_layers == 0}:
        b = StrategyBatch.of([s])
        for layers in splits(4, s.pp):
            for full in product(*(range(n + 1) for n in layers)) if s.recompute == 2 else [(0,) * s.pp]:
                e = evaluate(p, b, layout=laid_out(p.arch, s.pp, layers, tuple((n,) for n in full)))
                if e.fits[0]:
                    best = min(best, float(e.total_s[0]))
    result = search(p, space, top=20)
    if np.isinf(best):
        assert not result.plans
        return
    assert min(evaluator_s(p, x) for x in result.plans) == pytest.approx(best, rel=5e-3)


def test_memory_that_binds_on_some_stages_is_strictly_faster_with_stages_of_their_own() -> None:
    p = problem(arch((4096,) * 12, vocab=64_000), 8, memory_gb=4.6, batch=64, engine=FIRST)
    space = Space(pp=(4,), zero=(0, 1))
    found, grid = uneven_search(p, space, (), top=3), grid_search(p, space, (), top=1)
    best = found.plans[0]
    assert best.stages
    assert best.stages[-1].n_layers < best.stages[0].n_layers
    assert evaluator_s(p, best) < grid.plans[0].cost.total_s
    assert best.cost.total_s < found.baseline.cost.total_s  # type: ignore[union-attr]
    assert best.reasons[0].startswith("+")
    assert "usual stages" in best.reasons[0]
    assert sum(s.n_layers for s in best.stages) == 12
    assert sum(s.gpus for s in best.stages) == 8
    assert [s.stage for s in best.stages] == [0, 1, 2, 3]
    assert best.stages[0].embedding
    assert best.stages[-1].head
    assert max(s.memory_bytes for s in best.stages) == pytest.approx(best.memory.allocated_bytes)


def test_something_may_fit_only_with_stages_of_their_own() -> None:
    fits = 0
    for memory_gb in (4.2, 4.4, 4.6, 4.8):
        p = problem(arch((4096,) * 7, vocab=64_000), 4, memory_gb=float(memory_gb), batch=32, engine=FREE)
        space = Space(
            vpp=(1,), tp=(1,), zero=(0,), offload=(0,), cp=(1,), mbs=(1,), recompute=("none", "full"), partial_recompute=False
        )
        found, grid = search(p, space), grid_search(p, space, ())
        assert bool(found.plans) >= bool(grid.plans)
        fits += bool(found.plans) and not grid.plans
        if found.plans:
            assert found.nearest_miss is None
            assert found.fitting >= len(found.plans)
    assert fits


def test_an_engine_that_recomputes_alike_everywhere_gets_such_plans() -> None:
    p = problem(arch((4096,) * 10), 4, memory_gb=3.8, batch=32, engine=SAME)
    space = Space(vpp=(1,), tp=(1,), pp=(4,), zero=(0,), offload=(0,))
    plans = [x for x in search(p, space, top=10).plans if x.stages and x.strategy.recompute == 2]
    assert plans
    for plan in plans:
        most = max(sum(s.recomputed.values()) for s in plan.stages)
        assert all(sum(s.recomputed.values()) == min(most, s.n_layers) for s in plan.stages)


def test_an_engine_without_the_ability_is_told_so() -> None:
    result = search(problem(LARGE_HEAD, 4, engine=PLAIN))
    assert any("plain cuts stages evenly" in a for a in result.assumptions)
    words = search(problem(LARGE_HEAD, 4, engine=FREE)).assumptions
    assert any(a == "stages of different size: a list" for a in words)


def test_layers_of_several_kinds_keep_their_kind() -> None:
    p = training(mla_moe(9, 2, 2048, 16, 16, 2), 16, batch=64, engine=FREE)
    result = uneven_search(p, Space(vpp=(1, 2)), (rule("heads % tp", lambda _p, s: 16 % s.tp != 0),), top=4)
    for plan in (x for x in result.plans if x.stages):
        kinds: dict[str, int] = {}
        for s in plan.stages:
            for kind, n in s.classes.items():
                kinds[kind] = kinds.get(kind, 0) + n
                assert 0 <= s.recomputed.get(kind, 0) <= n
        assert kinds == {"mla+dense": 2, "mla+moe": 7}


def test_serving_is_refused_with_a_reason() -> None:
    from problem_builders import dense, inference

    with pytest.raises(SpecError, match="serving has no stages"):
        two_level.plan("two_level", inference(dense(8, 1024, 8, 8, 4096, 1024), 8), {"host": None})
    assert two_level.plan("grid", problem(LARGE_HEAD, 4), {}) is None
    assert set(two_level.planners()) == {"auto", "two_level"}
