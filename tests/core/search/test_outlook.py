"""What surrounds a serving answer is priced by the same functions as the answer, and says what is true of them."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

import autoparallel_core as ap
from autoparallel_core.report.outlook import goodput, layout_reasons, trade_off, warning
from autoparallel_core.search.outlook import INTERACTIVE_TTFT_S, Outlook, outlook
from autoparallel_core.search.result import Plan, SearchResult
from autoparallel_core.spec.problem import Problem
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu, toy_moe_arch

HOST = ap.host()


def problem(arch: Any = None, n_gpus: int = 8, **work: Any) -> Problem:
    workload = ap.InferenceWorkload(**({"isl": 4096, "osl": 256} | work))
    return ap.make_problem(arch or toy_dense_arch(), ap.build_cluster(toy_gpu(), n_gpus), workload, engine="vllm", host=HOST)


def asked(arch: Any = None, n_gpus: int = 8, **work: Any) -> tuple[SearchResult, Outlook]:
    result = ap.search(problem(arch, n_gpus, **work), planner="grid", top=3, host=HOST)
    found = outlook(result, HOST)
    assert found is not None
    return result, found


def at(p: Problem, plan: Plan, concurrency: float) -> tuple[float, float]:
    """TTFT and TPOT of a layout at a load, as ``evaluate`` has them."""
    p = p.with_workload(evolve(p.inference, concurrency=round(concurrency)))
    serving = ap.evaluate(p, ap.StrategyBatch.of([plan.strategy]), host=HOST).serving
    return float(serving["ttft_s"][0]), float(serving["tpot_s"][0])


def test_the_usable_load_is_the_largest_within_the_limits() -> None:
    result, found = asked(isl=2048, osl=32, max_num_seqs=4096, device_memory_bytes=200e9)
    best, usable = result.plans[0], found.usable
    assert best.serving
    assert best.serving.ttft_s > INTERACTIVE_TTFT_S
    assert usable
    assert usable.plan
    assert usable.plan.serving
    assert usable.best
    n, instances = usable.plan.serving.concurrency, usable.plan.serving.instances
    assert at(result.problem, best, n) == pytest.approx((usable.plan.serving.ttft_s, usable.plan.serving.tpot_s))
    ttft, tpot = at(result.problem, best, n + instances)
    assert ttft > usable.ttft_limit_s or tpot > usable.tpot_limit_s
    assert usable.best.output_tokens_per_s_per_gpu >= usable.plan.serving.output_tokens_per_s_per_gpu * (1 - 1e-9)
    text = warning(best, usable)[0]
    assert text.startswith(f"too slow for people: with {best.serving.concurrency:,.0f} requests in flight #1 takes")
    assert f"with {n:,.0f} it keeps TTFT" in text


@pytest.mark.parametrize("work", [{"concurrency": 8}, {"ttft_limit_s": 30.0}, {"goal": "latency"}])
def test_no_warning_where_people_can_use_it_or_said_what_they_take(work: dict[str, Any]) -> None:
    assert asked(**work)[1].usable is None


def test_each_end_of_the_frontier_wins_at_its_load() -> None:
    result, found = asked(n_gpus=8)
    contrast = found.contrast
    assert contrast
    assert contrast.other.serving
    assert contrast.best_there.serving
    assert contrast.other_here.serving
    best = result.plans[0].serving
    assert best
    assert contrast.other.serving.tpot_s < contrast.best_there.serving.tpot_s
    assert contrast.other.serving.concurrency == contrast.best_there.serving.concurrency
    assert contrast.other_here.serving.output_tokens_per_s < best.output_tokens_per_s
    under, single = trade_off(result.problem, result.plans[0], contrast)
    assert under.startswith(f"under load {result.plans[0].notation} gives more")
    assert single.startswith(f"for one user {contrast.other.notation} is faster")
    latency, outlook_latency = asked(goal="latency")
    first, second = trade_off(latency.problem, latency.plans[0], outlook_latency.contrast)
    assert first.startswith(f"for one user {latency.plans[0].notation} is faster")
    assert second.startswith("under load ")


def test_dimensions_are_explained_by_the_layout_without_them() -> None:
    result, found = asked(toy_moe_arch(), 8)
    best = next(p for p in result.plans if p.strategy.ep > 1)
    result = evolve(result, plans=(best,))
    found = outlook(result, HOST)
    assert found
    (ep,) = [w for w in found.without if w.dimension == "ep"]
    assert (ep.plan.strategy.ep, ep.plan.strategy.etp) == (1, best.strategy.ep * best.strategy.etp)
    own = ap.evaluate(result.problem, ap.StrategyBatch.of([ep.plan.strategy]), host=HOST)
    assert ep.plan.throughput == pytest.approx(own.tokens_per_s_per_gpu[0])
    reasons = layout_reasons(result.problem, best, found.without)
    assert any(r.startswith(f"ep {best.strategy.ep}: each rank keeps whole experts; with experts cut") for r in reasons)


def test_goodput_is_said_within_limits_only() -> None:
    free, bound = asked()[1], asked(tpot_limit_s=0.01)
    assert goodput(problem(), asked()[0].plans[0], free) == []
    (text,) = goodput(bound[0].problem, bound[0].plans[0], bound[1])
    best = bound[0].plans[0].serving
    assert best
    assert text.startswith("goodput within TPOT 10.0 ms (means): ")
    assert bound[1].frontier.goodput
    assert bound[1].frontier.goodput.requests_per_s >= best.requests_per_s * (1 - 1e-9)


def test_training_and_offline_runs_have_none() -> None:
    offline = ap.search(problem(load="offline"), planner="grid", host=HOST)
    assert outlook(offline, HOST) is None
    assert outlook(evolve(offline, plans=()), HOST) is None
