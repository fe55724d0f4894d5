"""Pools of two roles: rates that match, limits that hold, and the cache that moves between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autoparallel_core as ap
from autoparallel_core.cost.serving_disagg import BUSIEST, busy_at, decode_instances, prefill_instances, transfer_s, waiting_s
from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_load import Demand, steady_state
from autoparallel_core.errors import SpecError
from autoparallel_core.search.disaggregated import Disaggregated, search_disaggregated
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu

HOST = ap.host()


def problem(n_gpus: int = 8, *, gpu: Any = None, **work: Any) -> Problem:
    workload = ap.InferenceWorkload(**({"isl": 2048, "osl": 256} | work))
    cluster = ap.build_cluster(gpu or toy_gpu(), n_gpus)
    return ap.make_problem(toy_dense_arch(), cluster, workload, engine="vllm", host=HOST)


def asked(n_gpus: int = 8, **work: Any) -> tuple[Disaggregated, ...]:
    return search_disaggregated(problem(n_gpus, **work), HOST)


@pytest.mark.parametrize("n_gpus", [2, 8, 16])
def test_pools_fill_no_more_gpus_than_there_are_and_bound_the_rate(n_gpus: int) -> None:
    best = asked(n_gpus)
    assert best
    for d in best:
        assert d.gpus <= n_gpus
        assert d.prefill.gpus == d.prefill.strategy.world
        assert d.decode.gpus == d.decode.strategy.world
        assert d.requests_per_s == pytest.approx(min(BUSIEST * d.prefill.requests_per_s, d.decode.requests_per_s))
        assert d.bound == ("prefill" if BUSIEST * d.prefill.requests_per_s < d.decode.requests_per_s else "decode")
        assert d.output_tokens_per_s == pytest.approx(256 * d.requests_per_s)
        assert d.output_tokens_per_s_per_gpu == pytest.approx(d.output_tokens_per_s / n_gpus)
    rates = [d.output_tokens_per_s_per_gpu for d in best]
    assert rates == sorted(rates, reverse=True)


def test_one_gpu_cannot_be_two_pools() -> None:
    assert asked(1) == ()


def test_limits_hold() -> None:
    loose, tight = asked(8)[0], asked(8, tpot_limit_s=0.006, ttft_limit_s=0.4)[0]
    assert tight.tpot_s <= 0.006
    assert tight.ttft_s <= 0.4
    assert tight.requests_per_s <= loose.requests_per_s
    assert asked(8, tpot_limit_s=1e-6) == ()


def test_requests_in_flight_bound_the_rate_by_little_s_law() -> None:
    d = asked(8, concurrency=4)[0]
    assert d.bound == "requests in flight"
    unbound = asked(8)[0]
    assert d.requests_per_s < unbound.requests_per_s
    assert d.requests_per_s * (d.ttft_s + d.tpot_s * 255) <= 4 * (1 + 1e-9)


def test_a_limit_on_ttft_lowers_the_rate_to_where_it_holds() -> None:
    free = asked(8)[0]
    limit = 0.9 * free.ttft_s
    bound = asked(8, ttft_limit_s=limit)
    assert bound
    assert all(d.ttft_s <= limit * (1 + 1e-6) for d in bound)
    held = next((d for d in bound if d.bound == "TTFT limit"), None)
    if held is not None:
        assert held.ttft_s == pytest.approx(limit)
        assert held.requests_per_s < min(BUSIEST * held.prefill.requests_per_s, held.decode.requests_per_s)


def test_the_goal_cost_takes_the_fewest_gpus_for_the_rate() -> None:
    rate = asked(8)[0].requests_per_s / 4
    cheap = asked(8, goal="cost", request_rate_per_s=rate)[0]
    assert cheap.requests_per_s == pytest.approx(rate)
    assert cheap.bound == "request rate"
    assert cheap.gpus < asked(8)[0].gpus


def test_latency_takes_the_fastest_pair() -> None:
    fast, much = asked(16, goal="latency", concurrency=4)[0], asked(16)[0]
    assert fast.ttft_s + 255 * fast.tpot_s < much.ttft_s + 255 * much.tpot_s


def test_more_prompt_needs_more_prefill() -> None:
    short, long = asked(16, isl=256, osl=2048)[0], asked(16, isl=8192, osl=64)[0]
    assert short.prefill.gpus / short.gpus < long.prefill.gpus / long.gpus


def test_the_decode_pool_may_have_other_gpus() -> None:
    small = toy_gpu("small", hbm_bytes_per_s=2e12)
    mixed = search_disaggregated(problem(8), HOST, decode=problem(8, gpu=small))
    assert (mixed[0].prefill.gpu, mixed[0].decode.gpu) == ("toy-gpu", "small")
    assert mixed[0].prefill.gpus <= 8
    assert mixed[0].decode.gpus <= 8
    with pytest.raises(SpecError, match="same workload"):
        search_disaggregated(problem(8), HOST, decode=problem(8, osl=1))


def test_moving_a_cache_takes_its_bytes_over_the_slower_side() -> None:
    p = problem(16)
    hw = ServingHardware(p)
    inside = transfer_s(hw, 1e9, 2e9, p.cluster, 8)
    across = transfer_s(hw, 1e9, 2e9, p.cluster, 16)
    assert inside == pytest.approx(2e9 / 450e9 + p.cluster.tiers[0].latency_s)
    assert across == pytest.approx(2e9 / (50e9 * p.constant("scale_out_efficiency")), rel=0.01)


def test_waiting_follows_the_known_formula() -> None:
    # M/D/1 at half load: half a service time
    assert waiting_s(np.array([2.0]), np.array([0.5]))[0] == pytest.approx(1.0)
    assert waiting_s(np.array([2.0]), np.array([0.0]))[0] == 0


def test_how_busy_a_server_may_be_is_the_inverse_of_the_wait() -> None:
    busy, service = np.linspace(0.05, 0.95, 7), np.array([0.3])
    assert busy_at(service, waiting_s(service, busy)) == pytest.approx(busy)


def test_a_decode_instance_is_a_closed_loop_without_prompts() -> None:
    p = problem(8, concurrency=32)
    hw, batch = ServingHardware(p), StrategyBatch.of([Strategy(tp=8)])
    alone = decode_instances(hw, batch, Demand.of(p, 1), np.array([32.0]))
    mixed = steady_state(hw, batch, np.array([1e9]))
    assert alone.tpot_s == pytest.approx(mixed.decode_s)
    assert alone.tpot_s < mixed.tpot_s
    assert alone.requests_per_s == pytest.approx(32 / (256 * alone.tpot_s))


def test_prompts_in_one_step_share_what_is_fixed() -> None:
    p = problem(8, isl=64)
    one = prefill_instances(ServingHardware(p), StrategyBatch.of([Strategy()]), Demand.of(p, 1))
    assert one.service_s < 0.5 * one.latency_s
