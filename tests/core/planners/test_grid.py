from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from problem_builders import dense, inference, mla_moe, rule, training

from autoparallel_core.errors import PluginContract, SpecError
from autoparallel_core.planners import grid
from autoparallel_core.planners.exhaustive import _Best, _excess, grid_search
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.rank import rank_order
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch

HEADS = rule("heads % tp", lambda _p, s: 16 % s.tp != 0)
SMALL = training(dense(12, 4096, 32, 8, 16384, 32000), 24, batch=48)
MOE = training(mla_moe(8, 1, 4096, 32, 16, 2), 16, batch=32)


@pytest.mark.parametrize("problem", [SMALL, MOE], ids=["dense", "moe"])
def test_equals_pricing_everything_at_once(problem: Problem) -> None:
    result = grid_search(problem, Space(), (HEADS,), top=8, distinct=False)
    whole = StrategyBatch.concat(list(enumerate_space(problem, Space(), (HEADS,))))
    e = evaluate(problem, whole)
    fits = np.flatnonzero(e.fits)
    order = fits[rank_order(whole.take(fits), e.tokens_per_s_per_gpu[fits])][:8]
    assert [p.strategy for p in result.plans] == [whole[int(i)] for i in order]
    assert [p.throughput for p in result.plans] == pytest.approx(e.tokens_per_s_per_gpu[order])
    assert (result.evaluated, result.fitting) == (len(whole), len(fits))
    assert result.enumerated == result.evaluated + sum(result.refused.values())
    assert all(p.verdict != "does not fit" for p in result.plans)
    assert result.nearest_miss is None
    beaten = e.capacity_bytes - e.reserved_bytes
    for plan in result.pareto:
        better = (e.tokens_per_s_per_gpu[fits] > plan.throughput * (1 + 1e-9)) & (beaten[fits] > plan.memory.margin_bytes + 1)
        assert not better.any()


def test_reasons_name_the_cost_the_memory_and_the_next_best() -> None:
    result = grid_search(SMALL, Space(), (HEADS,), top=4, distinct=False)
    first, *_, last = result.plans
    assert len(first.reasons) == 3
    assert first.reasons[0].startswith("largest exposed cost: ")
    assert "stay free" in first.reasons[1]
    assert first.reasons[2].startswith(f"next best: {result.plans[1].strategy} ")
    assert len(last.reasons) == 2


def test_nothing_fits_gives_the_nearest_miss() -> None:
    small = evolve(SMALL.cluster, gpu=evolve(SMALL.cluster.gpu, memory_bytes=2.5e9))
    problem = SMALL.with_cluster(small)
    result = grid_search(problem, Space(), (HEADS,))
    whole = StrategyBatch.concat(list(enumerate_space(problem, Space(), (HEADS,))))
    e = evaluate(problem, whole)
    assert not e.fits.any()
    assert (result.plans, result.pareto, result.fitting) == ((), (), 0)
    assert result.nearest_miss is not None
    assert result.nearest_miss.memory.reserved_bytes == pytest.approx(e.reserved_bytes.min())
    assert "too much" in result.nearest_miss.reasons[1]


def test_a_shortage_of_host_memory_is_not_blamed_on_the_gpu() -> None:
    problem = training(dense(32, 4096, 32, 8, 14336, 128256), 8, optimizer_cpu_offload=True)
    problem = problem.with_cluster(evolve(problem.cluster, host_memory_bytes_per_node=10e9))
    miss = grid_search(problem, Space(offload=(1,)), ()).nearest_miss
    assert miss is not None
    assert miss.memory.host_bytes_per_node > 10e9
    assert miss.memory.margin_bytes >= 0
    fits = grid_search(problem.with_cluster(evolve(problem.cluster, host_memory_bytes_per_node=1e13)), Space(offload=(1,)), ())
    fastest = max(p.throughput for p in fits.plans)
    assert miss.throughput == pytest.approx(fastest, rel=0.02), "of those that lack the host's memory alone, the fastest"


def test_the_excess_adds_up_what_is_missing() -> None:
    problem = training(dense(4, 1024, 16, 4, 4096, 32000), 8)
    e = evaluate(problem, LAYOUTS)
    capacity, host = e.capacity_bytes, problem.cluster.host_memory_bytes_per_node
    e = evolve(e, reserved_bytes=capacity * np.array([0.5, 1.2, 1.1, 0.2]), host_bytes_per_node=host * np.array([3, 1.1, 0, 1]))
    assert _excess(problem, e) == pytest.approx([2.0, 0.3, 0.1, 0.0])


def test_first_fit_stops_early() -> None:
    problem = training(dense(32, 4096, 32, 8, 14336, 128256), 64)
    assert 0 < grid_search(problem, Space(), (), first_fit=True).evaluated < grid_search(problem, Space(), ()).evaluated


def test_progress_counts_up_to_the_legal_total() -> None:
    seen: list[tuple[int, int]] = []
    result = grid_search(SMALL, Space(), (HEADS,), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (result.evaluated, result.evaluated)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_an_indivisible_batch_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no split of 8 GPUs .* 3 sequences"):
        grid_search(training(dense(1, 1024, 16, 4, 4096, 32000), 8, seq=512, batch=3), Space(tp=(1, 2)), ())


# --- serving: goals and limits, on figures made up so that the right answer is known ---------------------------

LAYOUTS = StrategyBatch.from_columns(4, tp=[1, 2, 4, 8], dp=[8, 4, 2, 1])


def made_up(problem: Problem, ttft: Any, tpot: Any, rate: Any, *, fits: Any = True) -> Evaluation:
    n = len(LAYOUTS)
    full = {
        k: np.broadcast_to(np.asarray(v, dtype=np.float64), (n,)) for k, v in {"ttft": ttft, "tpot": tpot, "rate": rate}.items()
    }
    zero = np.zeros(n)
    return Evaluation(
        batch=LAYOUTS, seconds={}, total_s=full["tpot"], tokens_per_s_per_gpu=full["rate"], allocated_bytes=zero,
        reserved_bytes=zero + 1, host_bytes_per_node=zero, capacity_bytes=2.0, fits=np.broadcast_to(fits, (n,)), tight=zero > 0,
        serving={"ttft_s": full["ttft"], "tpot_s": full["tpot"], "max_concurrency": np.array([8.0, 4.0, 2.0, 1.0])},
    )  # fmt: skip


def winner(problem: Problem, **figures: Any) -> tuple[int, _Best]:
    best = _Best(problem, 4)
    best.add(made_up(problem, **figures))
    ranked = best.top.ranked()[0]
    return (int(ranked.tp[0]) if len(ranked) else 0), best


def test_serving_goals() -> None:
    arch = dense(4, 1024, 16, 4, 4096, 32000)
    figures: dict[str, Any] = {"ttft": [4, 3, 2, 1], "tpot": [0.04, 0.03, 0.02, 0.01], "rate": [40, 30, 20, 10]}
    assert winner(inference(arch, 8), **figures)[0] == 1
    assert winner(inference(arch, 8, goal="latency"), **figures)[0] == 8
    idle = inference(arch, 16)  # the layouts use 8 of 16 GPUs: in use, each does twice the figure
    assert winner(evolve(idle, workload=evolve(idle.inference, goal="cost")), **figures)[1].top.score[0] == 80


def test_serving_limits_are_counted_like_rules() -> None:
    arch = dense(4, 1024, 16, 4, 4096, 32000)
    figures: dict[str, Any] = {"ttft": [4, 3, 2, 1], "tpot": [0.01, 0.02, 0.03, 0.04], "rate": [40, 30, 20, 10]}
    tp, best = winner(inference(arch, 8, ttft_limit_s=3.0, tpot_limit_s=0.025), **figures)
    assert tp == 2
    assert best.too_slow == {"TTFT limit": 1, "TPOT limit": 2}
    assert best.fitting == 1


def test_serving_front_trades_speed_for_requests_held() -> None:
    arch = dense(4, 1024, 16, 4, 4096, 32000)
    _, best = winner(inference(arch, 8), ttft=1, tpot=0.01, rate=[10, 20, 15, 40])
    assert best.front.batch.tp.tolist() == [8, 2, 1]


def test_a_number_that_is_none_is_not_ranked() -> None:
    with pytest.raises(PluginContract, match=r"tp2 pp1 dp4 .* is not a number"):
        winner(inference(dense(4, 1024, 16, 4, 4096, 32000), 8), ttft=1, tpot=1, rate=[1, np.nan, 1, 1])


def test_plugin_answers_to_its_name_only() -> None:
    assert set(grid.planners()) == {"grid"}
    assert grid.plan("other", SMALL, {}) is None


def test_plugin_asks_the_host_for_space_and_rules() -> None:
    class Host:
        def search_space(self, problem: Problem) -> Space:
            return Space(tp=(2,), zero=(1,))

        def call(self, group: str, hook: str, **_: Any) -> list[Any]:
            return []

    result = grid.plan("grid", SMALL, {"host": Host(), "top": 3})
    assert result is not None
    assert len(result.plans) == 3
    assert {(p.strategy.tp, p.strategy.zero) for p in result.plans} <= {(2, 1), (2, 0)}
