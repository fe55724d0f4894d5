"""Pools beside aggregated deployments: the same limits, the same speed for a user, and a price for each."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

import autoparallel_core as ap
from autoparallel_core.report.pools import conclusion, pools_document, pools_in_words
from autoparallel_core.search.pools import Compared, compare_pools, looking
from autoparallel_core.spec.problem import Problem
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu

HOST = ap.host()


def problem(n_gpus: int = 8, *, gpu: Any = None, **work: Any) -> Problem:
    workload = ap.InferenceWorkload(**({"isl": 4096, "osl": 512} | work))
    return ap.make_problem(toy_dense_arch(), ap.build_cluster(gpu or toy_gpu(), n_gpus), workload, engine="vllm", host=HOST)


def asked(**work: Any) -> tuple[Problem, Compared]:
    p = problem(**work)
    return p, compare_pools(ap.search(p, planner="grid", host=HOST), HOST)


def test_open_loads_are_compared_at_the_pools_speed() -> None:
    p, found = asked()
    best, (point,) = found.deployments[0], found.at_same_speed
    assert point.tpot_s <= best.tpot_s
    assert found.gain == pytest.approx(best.output_tokens_per_s / point.output_tokens_per_s)
    assert "at the same time per token" in conclusion(p, found)[0]
    assert len({d.decode.strategy.tp for d in found.deployments}) == len(found.deployments)


def test_limits_hold_for_both() -> None:
    p, found = asked(ttft_limit_s=1.0, tpot_limit_s=0.02)
    assert found.at_same_speed == ()
    for d in found.deployments:
        assert d.ttft_s <= 1.0 * (1 + 1e-6)
        assert d.tpot_s <= 0.02
    served = found.aggregated[0].serving
    assert served
    assert found.gain == pytest.approx(found.deployments[0].output_tokens_per_s / served.output_tokens_per_s)
    assert conclusion(p, found)[0].startswith("two pools" if found.gain > 1 else "aggregated")


def test_latency_compares_one_request() -> None:
    _, found = asked(goal="latency")
    best, served = found.deployments[0], found.aggregated[0].serving
    assert served
    assert found.gain == pytest.approx(served.e2e_tpot_s * 512 / (best.ttft_s + 511 * best.tpot_s))
    assert best.bound == "requests in flight"


def test_limits_that_nothing_keeps() -> None:
    p, found = asked(tpot_limit_s=1e-6)
    assert (found.deployments, found.aggregated, found.gain) == ((), (), None)
    assert conclusion(p, found) == ["no two pools keep the limits, either"]


def test_decode_on_gpus_of_its_own_with_their_price() -> None:
    small = toy_gpu("small", hbm_bytes_per_s=2e12)
    p, other = problem(gpu_hour_price=3.0), problem(gpu=small, gpu_hour_price=3.0)
    found = compare_pools(ap.search(p, planner="grid", host=HOST), HOST, decode=other)
    d = found.deployments[0]
    assert len(found.aggregated) == 2
    assert "on small" in pools_in_words(d)
    body = pools_document(p, found, 1.0)["deployments"][0]
    hourly = 3.0 * d.prefill.gpus + 1.0 * d.decode.gpus
    assert body["price_per_million_output_tokens"] == pytest.approx(hourly / 3600 / d.output_tokens_per_s * 1e6)
    assert body["price_per_million_tokens"] == pytest.approx(hourly / 3600 / (d.requests_per_s * 4608) * 1e6)


def test_no_side_waits_for_steps_that_the_other_has_not() -> None:
    """What published runs were set to is not an advantage of pools: both look for new requests at every step."""
    p = problem(ttft_limit_s=1.0, tpot_limit_s=0.02)
    slow = evolve(p, constants={**p.constants, "serving_ttft_steps": evolve(p.constants["serving_ttft_steps"], value=31.0)})
    found, same = (compare_pools(ap.search(x, planner="grid", host=HOST), HOST) for x in (slow, looking(p)))
    assert found.gain == pytest.approx(same.gain)
    assert found.aggregated[0].serving == same.aggregated[0].serving
    assert (found.steps_waited, same.steps_waited) == (31.0, 1.0)
    assert any("wait 31 decode steps" in sentence for sentence in conclusion(slow, found))
    assert not any("decode steps" in sentence for sentence in conclusion(p, same))
