"""Stage cuts against every cut and submesh, and the properties that published planners are known by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.solve.stages import StageProblem, plan_stages


@st.composite
def problems(draw: st.DrawFn) -> StageProblem:
    """Up to five nodes, four stages, three submeshes, two kinds of device; a fifth of the stages impossible."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stages, nodes, meshes, kinds = (draw(st.integers(1, n)) for n in (4, 5, 3, 2))
    units = rng.integers(0, 3, size=(meshes, kinds))
    units[units.sum(axis=1) == 0, 0] = 1
    shape = (stages, nodes, nodes, meshes)
    time = rng.random(shape) if draw(st.booleans()) else rng.integers(1, 6, size=shape).astype(float)
    time[rng.random(shape) < 0.2] = np.inf
    total = rng.integers(0, 5, size=kinds)
    if draw(st.booleans()):
        return StageProblem.of(time, units, total, micro_batches=draw(st.sampled_from([1, 4, 32])))
    return StageProblem.of(time, units, total, spread=rng.random(stages), repeat=rng.random(stages) * 20)


def best_of_all(problem: StageProblem) -> float:
    stages, nodes = problem.time.shape[:2]
    best = np.inf

    def cut(i: int, left: np.ndarray, chosen: list[tuple[int, int, int]]) -> None:
        nonlocal best
        if i == nodes and not left.any():
            p = len(chosen)
            times = [problem.time[p - 1 - s, a, b, m] for s, (a, b, m) in enumerate(chosen)]
            if np.isfinite(times).all():
                best = min(best, problem.spread[p - 1] * sum(times) + problem.repeat[p - 1] * max(times))
        if i == nodes or len(chosen) == stages:
            return
        for j in range(i, nodes):
            for m, units in enumerate(problem.units):
                if (units <= left).all():
                    cut(j + 1, left - units, [*chosen, (i, j, m)])

    cut(0, problem.total.copy(), [])
    return best


@given(problems())
@settings(deadline=None, max_examples=200)
def test_the_plan_is_the_best_of_all_cuts_and_submeshes(problem: StageProblem) -> None:
    want, got = best_of_all(problem), plan_stages(problem)
    if got.best is None:
        assert np.isinf(want)
        return
    plan = got.best
    assert plan.objective == pytest.approx(want, rel=1e-9)
    assert [s.first for s in plan.stages] == [0, *(s.last + 1 for s in plan.stages[:-1])]
    assert plan.stages[-1].last == problem.time.shape[1] - 1
    assert (sum(problem.units[s.submesh] for s in plan.stages) == problem.total).all()
    p = len(plan.stages)
    for n, s in enumerate(plan.stages):
        assert s.time == problem.time[p - 1 - n, s.first, s.last, s.submesh]
    assert [x.objective for x in got.plans] == sorted(x.objective for x in got.plans)


@given(problems(), st.sampled_from([0.01, 0.2]))
@settings(deadline=None, max_examples=100)
def test_a_tolerance_costs_no_more_than_itself(problem: StageProblem, tolerance: float) -> None:
    exact, loose = plan_stages(problem).best, plan_stages(problem, tolerance=tolerance).best
    assert (exact is None) == (loose is None)
    if exact is not None and loose is not None:
        assert exact.objective <= loose.objective * (1 + 1e-12)
        assert loose.objective * (1 - tolerance) <= exact.objective * (1 + 1e-9)


def chain_times(weights: np.ndarray, stages: int, *, sizes: tuple[int, ...] = (1,), efficiency: float = 1.0) -> np.ndarray:
    """T of a chain with node weights: the sum of an interval over units^efficiency."""
    ends = np.concatenate([[0.0], np.cumsum(weights)])
    interval = np.maximum(ends[None, 1:] - ends[:-1, None], 0.0)
    one = np.stack([interval / n**efficiency for n in sizes], axis=-1)
    return np.broadcast_to(one, (stages, *one.shape)).copy()


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_identical_layers_on_a_power_of_two_of_stages_split_evenly(stages: int) -> None:
    problem = StageProblem.of(chain_times(np.ones(32), stages), [[1]], [stages], micro_batches=64)
    plan = plan_stages(problem).best
    assert plan is not None
    assert [s.last - s.first + 1 for s in plan.stages] == [32 // stages] * stages


@pytest.mark.parametrize("head", [2.5, 4.0, 7.0])
def test_a_heavy_head_takes_layers_off_the_last_stage(head: float) -> None:
    weights = np.ones(32)
    weights[-1] += head
    plan = plan_stages(StageProblem.of(chain_times(weights, 4), [[1]], [4], micro_batches=64)).best
    assert plan is not None
    held = [s.last - s.first + 1 for s in plan.stages]
    assert held[-1] <= 8 - head / 2
    assert plan.slowest == min(max(np.ceil((32 - n) / 3), n + head) for n in range(1, 9))


def test_many_micro_batches_give_the_min_max_partition() -> None:
    rng = np.random.default_rng(5)
    weights = rng.random(30) + 0.1
    plan = plan_stages(StageProblem.of(chain_times(weights, 6), [[1]], [6], micro_batches=10**6)).best
    assert plan is not None
    # Min-max partition of a chain by dynamic programming on prefixes.
    ends = np.concatenate([[0.0], np.cumsum(weights)])
    reach = ends.copy()
    for _ in range(5):
        reach = np.array([min((max(reach[i], ends[j] - ends[i]) for i in range(j + 1)), default=np.inf) for j in range(31)])
    assert plan.slowest == pytest.approx(reach[-1])


def test_more_memory_is_never_worse() -> None:
    """A cell that becomes possible cannot raise the optimum."""
    rng = np.random.default_rng(9)
    time = rng.random((3, 6, 6, 2)) + 0.1
    blocked = rng.random(time.shape) < 0.5
    objective = []
    for share in (1.0, 0.5, 0.0):
        shut = blocked & (rng.random(time.shape) < share)
        blocked = shut
        best = plan_stages(StageProblem.of(np.where(shut, np.inf, time), [[1], [2]], [4], micro_batches=16)).best
        objective.append(best.objective if best else np.inf)
    assert objective == sorted(objective, reverse=True)


def test_stages_land_on_the_kind_of_device_that_suits_them() -> None:
    """Two kinds, one twice as fast: the slow one gets a third of the layers, whichever end it is on."""
    fast, slow = chain_times(np.ones(12), 2)[..., 0] / 2, chain_times(np.ones(12), 2)[..., 0]
    problem = StageProblem.of(np.stack([fast, slow], axis=-1), [[1, 0], [0, 1]], [1, 1], micro_batches=64)
    plan = plan_stages(problem).best
    assert plan is not None
    assert {s.submesh: s.last - s.first + 1 for s in plan.stages} == {0: 8, 1: 4}


def test_memory_by_stage_moves_the_cut() -> None:
    """The first of two stages keeps two micro-batches in flight: with memory for 12 layer-loads it may hold 6 layers."""
    time = chain_times(np.ones(16), 2)
    layers = np.arange(16)[None, :] - np.arange(16)[:, None] + 1
    for k in (0, 1):
        time[k, :, :, 0] = np.where(layers * (k + 1) <= 12, time[k, :, :, 0], np.inf)
    plan = plan_stages(StageProblem.of(time, [[1]], [2], micro_batches=32)).best
    assert plan is not None
    assert [s.last - s.first + 1 for s in plan.stages] == [6, 10]


def test_further_plans_are_distinct_and_permitted() -> None:
    problem = StageProblem.of(chain_times(np.ones(24), 8, sizes=(1, 2, 4), efficiency=0.9), [1, 2, 4], [8], micro_batches=16)
    answer = plan_stages(problem, keep=5)
    cuts = {tuple((s.first, s.last, s.submesh) for s in p.stages) for p in answer.plans}
    assert 1 < len(cuts) == len(answer.plans) <= 5
    assert answer.solves < 30


def test_nothing_possible_is_no_plan() -> None:
    assert plan_stages(StageProblem.of(np.full((2, 3, 3, 1), np.inf), [1], [2], micro_batches=4)).best is None
    assert plan_stages(StageProblem.of(chain_times(np.ones(3), 2), [2], [3], micro_batches=4)).best is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"time": np.ones((2, 3, 4, 1))}, "must be"),
        ({"time": -np.ones((2, 3, 3, 1))}, "negative"),
        ({"units": [[0]]}, "none empty"),
        ({"micro_batches": None}, "either micro_batches or both"),
        ({"micro_batches": None, "spread": [1.0], "repeat": [1.0, 2.0]}, "non-negative numbers"),
    ],
)
def test_ill_shaped_problems_are_refused(change: dict, says: str) -> None:
    fields = {"time": np.ones((2, 3, 3, 1)), "units": [[1]], "total": [2], "micro_batches": 4} | change
    with pytest.raises(ValueError, match=says):
        StageProblem.of(fields.pop("time"), fields.pop("units"), fields.pop("total"), **fields)
