"""The frontier against brute force over the same points, and its limits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from attrs import evolve

import autoparallel_core as ap
from autoparallel_core.search.frontier import Frontier, frontier
from autoparallel_core.search.price import price_per_million_tokens
from autoparallel_core.spec.calibration import Calibration
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu

HOST = ap.host()


def asked(n_gpus: int = 8, **work: Any) -> Frontier:
    workload = ap.InferenceWorkload(**({"isl": 1024, "osl": 256} | work))
    problem = ap.make_problem(toy_dense_arch(), ap.build_cluster(toy_gpu(), n_gpus), workload, engine="vllm", host=HOST)
    return frontier(problem, HOST)


def test_no_point_beats_another_and_both_ends_are_there() -> None:
    found = asked()
    points = found.points
    assert len(points) > 5
    for a, b in itertools.combinations(points, 2):
        assert a.output_tokens_per_s_per_gpu >= b.output_tokens_per_s_per_gpu
        assert a.tokens_per_s_per_user <= b.tokens_per_s_per_user
    assert points[-1].concurrency < points[0].concurrency
    assert found.evaluated > len(points)


def test_a_point_is_what_the_search_gives_at_its_load() -> None:
    point = asked().points[1]
    work = ap.InferenceWorkload(1024, 256, concurrency=point.concurrency)
    problem = ap.make_problem(toy_dense_arch(), ap.build_cluster(toy_gpu(), 8), work, engine="vllm", host=HOST)
    e = ap.evaluate(problem, ap.StrategyBatch.of([point.strategy]), host=HOST)
    assert e.serving["tpot_s"][0] == pytest.approx(point.tpot_s)
    assert e.serving["ttft_s"][0] == pytest.approx(point.ttft_s)
    assert e.serving["output_tokens_per_s"][0] == pytest.approx(point.output_tokens_per_s)


def test_limits_cut_the_frontier_and_lower_the_goodput() -> None:
    free, bound = asked(), asked(tpot_limit_s=0.008)
    assert free.goodput
    assert bound.goodput
    assert all(p.tpot_s <= 0.008 for p in bound.points)
    assert bound.goodput.tpot_s <= 0.008
    assert bound.goodput.requests_per_s < free.goodput.requests_per_s
    assert free.goodput.requests_per_s >= max(p.requests_per_s for p in free.points) * (1 - 1e-9)


def test_limits_that_nothing_keeps_leave_nothing() -> None:
    found = asked(tpot_limit_s=1e-6)
    assert found.points == ()
    assert found.goodput is None
    assert found.evaluated > 0


def test_few_points_are_spread_over_the_whole_frontier() -> None:
    workload = ap.InferenceWorkload(1024, 256)
    problem = ap.make_problem(toy_dense_arch(), ap.build_cluster(toy_gpu(), 8), workload, engine="vllm", host=HOST)
    whole, few = frontier(problem, HOST, most=1000).points, frontier(problem, HOST, most=4).points
    assert len(few) <= 4 < len(whole)
    assert (few[0], few[-1]) == (whole[0], whole[-1])


def test_price_of_a_million_tokens() -> None:
    # 8 GPUs at 2 an hour make 1,000 tokens a second: 16 an hour for 3.6 million tokens
    assert price_per_million_tokens(1000.0, 8, 2.0) == pytest.approx(16 / 3.6)
    assert np.isfinite(price_per_million_tokens(1e-3, 1, 1.0))


def test_a_calibration_is_laid_on_every_point_as_the_search_lays_it() -> None:
    workload = ap.InferenceWorkload(1024, 256, tpot_limit_s=0.02)
    plain = ap.make_problem(toy_dense_arch(), ap.build_cluster(toy_gpu(), 8), workload, engine="vllm", host=HOST)
    learnt = evolve(plain, calibration=Calibration(kernels=1.3, collectives=0.8, host=2.0, prefill=1.1, first_token=1.5))
    found = frontier(learnt, HOST)
    for point in (found.points[0], found.points[-1], found.goodput):
        assert point
        at = learnt.with_workload(evolve(workload, concurrency=point.concurrency))
        serving = ap.evaluate(at, ap.StrategyBatch.of([point.strategy]), host=HOST).serving
        assert serving["tpot_s"][0] == pytest.approx(point.tpot_s)
        assert serving["ttft_s"][0] == pytest.approx(point.ttft_s)
        assert point.tpot_s <= 0.02


def test_goodput_under_limits_is_the_best_that_the_search_finds() -> None:
    work = ap.InferenceWorkload(1024, 256, ttft_limit_s=0.5, tpot_limit_s=0.012)
    problem = ap.make_problem(toy_dense_arch(), ap.build_cluster(toy_gpu(), 8), work, engine="vllm", host=HOST)
    best, good = ap.search(problem, planner="grid", host=HOST).plans, frontier(problem, HOST).goodput
    assert good
    assert good.requests_per_s >= max(p.serving.requests_per_s for p in best if p.serving) * (1 - 1e-9)
