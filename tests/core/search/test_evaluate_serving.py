"""Verdicts, margins and intervals of deployments, with memory invented for the purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve

from autoparallel_core.cluster import build_cluster
from autoparallel_core.cost.constants import core_constants
from autoparallel_core.search.evaluate_serving import evaluate_inference
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.explain_serving import serving_plan_at
from autoparallel_core.search.result import Plan
from autoparallel_core.spec.calibration import Calibration
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.serving import ServingPolicy
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu

ENGINE = EngineSpec(name="toy", modes=("inference",), default_version="1.0", summary="An engine for tests.")
WEIGHTS_BYTES = (16 * (4096 * 48 * 128 + 4096 * 4096 + 3 * 4096 * 16384) + 2 * 4096 * 32768) * 2
TOKEN_BYTES = 16 * 2 * 8 * 128 * 2


class Reserves:
    """Stands in for the plugin host: five gigabytes of activations."""

    def memory(self, problem: Problem, batch: StrategyBatch) -> list[tuple[Any, dict[str, Any]]]:
        return [(None, {"activation": np.full(len(batch), 5e9), "non_torch": np.full(len(batch), 1e9)})]


def problem_of(
    *, room_tokens: float, budget: str = "share_of_device", calibration: Calibration | None = None, **work: Any
) -> Problem:
    """On GPUs with room for so many tokens beside a whole copy of the weights."""
    reserved = 6e9 if budget != "share_of_free" else 1e9
    memory = WEIGHTS_BYTES + reserved + room_tokens * TOKEN_BYTES + 2e6
    policy = ServingPolicy(source="test", budget=budget, memory_fraction=1.0, rotary_cache=False)  # type: ignore[arg-type]
    gpu = toy_gpu(memory_bytes=memory)
    workload = InferenceWorkload(**({"isl": 1024, "osl": 256} | work))
    engine = evolve(ENGINE, serving=(policy,))
    constants = core_constants()
    return Problem(toy_dense_arch(), build_cluster(gpu, 8), workload, engine, "1.0", constants=constants, calibration=calibration)


def evaluated(strategy: Strategy, **asked: Any) -> Evaluation:
    return evaluate_inference(problem_of(**asked), StrategyBatch.of([strategy]), Reserves())  # type: ignore[arg-type]


def plan_of(evaluation: Evaluation, strategy: Strategy, **asked: Any) -> Plan:
    plan = serving_plan_at(problem_of(**asked), evaluation, 0)
    assert plan.strategy == strategy
    return plan


@pytest.mark.parametrize(
    ("room", "concurrency", "fits", "tight"),
    [(1000, 1, False, False), (1300, 1, True, False), (1300, 2, True, True), (2600, 2, True, False), (2600, None, True, False)],
)
def test_fits_is_one_request_and_tight_is_fewer_than_asked_for(
    room: float, concurrency: int | None, fits: bool, tight: bool
) -> None:  # fmt: skip
    e = evaluated(Strategy(), room_tokens=room, concurrency=concurrency)
    assert (bool(e.fits[0]), bool(e.tight[0])) == (fits, tight)


def test_instances_share_the_requests_asked_for() -> None:
    assert not evaluated(Strategy(dp=4), room_tokens=2600, concurrency=8).tight[0]
    assert evaluated(Strategy(dp=4), room_tokens=2600, concurrency=9).tight[0]


@pytest.mark.parametrize("budget", ["share_of_device", "share_of_free", "share_after_weights"])
@pytest.mark.parametrize("room", [1300, 5000, 50000])
def test_what_fits_reserves_no_more_than_there_is(budget: str, room: float) -> None:
    e = evaluated(Strategy(), room_tokens=room, budget=budget)
    assert e.fits[0]
    assert e.reserved_bytes[0] <= e.capacity_bytes
    assert sum(v[0] for v in e.memory.values()) == pytest.approx(e.allocated_bytes[0])


def test_what_does_not_fit_needs_more_than_there_is() -> None:
    e = evaluated(Strategy(), room_tokens=500)
    assert e.reserved_bytes[0] > e.capacity_bytes
    assert e.tokens_per_s_per_gpu[0] == 0


def test_intervals_hold_the_prediction_and_both_times_per_token_are_given() -> None:
    s = evaluated(Strategy(), room_tokens=50000, concurrency=16).serving
    assert s["tpot_low_s"][0] < s["tpot_s"][0] < s["tpot_high_s"][0]
    assert s["ttft_low_s"][0] < s["ttft_s"][0] < s["ttft_high_s"][0]
    assert s["e2e_tpot_s"][0] == pytest.approx((s["ttft_s"][0] + 255 * s["tpot_s"][0]) / 256)
    assert s["output_tokens_per_s_per_gpu"][0] == pytest.approx(s["output_tokens_per_s"][0] / 8)


LAYOUTS = (Strategy(dp=2), Strategy(tp=2), Strategy(tp=4, dp=2), Strategy(pp=2))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_as_many_as_fit_is_what_stating_that_concurrency_gives(layout: Strategy) -> None:
    open_ = evaluated(layout, room_tokens=50000).serving
    n = open_["concurrency"][0]
    assert 1 <= n <= open_["max_concurrency"][0]  # never more than the cache holds at full length
    stated = evaluated(layout, room_tokens=50000, concurrency=int(n)).serving
    for name in ("ttft_s", "tpot_s", "output_tokens_per_s", "requests_per_s", "batch_per_instance"):
        assert open_[name] == pytest.approx(stated[name], rel=1e-12), name


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("calibration", [None, Calibration(scale=1.3, first_token=1.5)])
@pytest.mark.parametrize("limit", ["ttft_limit_s", "tpot_limit_s"])
def test_under_a_limit_the_largest_load_that_keeps_it_is_taken(
    layout: Strategy, calibration: Calibration | None, limit: str
) -> None:  # fmt: skip
    def at(**work: Any) -> Any:
        return evaluated(layout, room_tokens=50000, calibration=calibration, **work).serving

    figure = limit.replace("limit_", "")
    per_instance = np.arange(1, int(at()["concurrency"][0]) // layout.dp + 1)
    by_hand = np.array([at(concurrency=int(n) * layout.dp)[figure][0] for n in per_instance])
    bound = float(by_hand[len(by_hand) // 3])
    found = at(**{limit: bound * (1 + 1e-9)})
    assert found["concurrency"][0] == per_instance[by_hand <= bound * (1 + 1e-9)].max() * layout.dp
    assert found[figure][0] == pytest.approx(bound)
    alone = at(**{limit: by_hand[0] * 0.9})  # not even one request keeps it: priced at one per instance
    assert alone["concurrency"][0] == layout.dp
    assert alone[figure][0] > by_hand[0] * 0.9


def test_the_goal_latency_compares_layouts_with_one_request_in_the_cluster() -> None:
    e = [evaluated(s, room_tokens=50000, goal="latency").serving for s in (Strategy(tp=4), Strategy(tp=4, dp=2))]
    assert e[0]["concurrency"][0] == e[1]["concurrency"][0] == 1
    assert e[0]["e2e_tpot_s"] == pytest.approx(e[1]["e2e_tpot_s"])
    assert e[0]["output_tokens_per_s"] == pytest.approx(e[1]["output_tokens_per_s"])


def test_the_goal_latency_takes_the_fewest_requests_that_serve_the_rate() -> None:
    one = evaluated(Strategy(tp=4), room_tokens=50000, goal="latency").serving["requests_per_s"][0]
    rate = 3.0 * one
    s = evaluated(Strategy(tp=4), room_tokens=50000, goal="latency", request_rate_per_s=rate).serving
    n = int(s["concurrency"][0])
    assert s["requests_per_s"][0] >= rate
    assert evaluated(Strategy(tp=4), room_tokens=50000, concurrency=n - 1).serving["requests_per_s"][0] < rate


def test_the_plan_says_how_many_requests_are_in_flight() -> None:
    work: dict[str, Any] = {"room_tokens": 50000}
    e = evaluated(Strategy(dp=2), **work)
    notes = plan_of(e, Strategy(dp=2), **work).serving
    assert notes is not None
    assert notes.notes[0].startswith(f"{int(e.serving['concurrency'][0]):,} requests in flight")
    stated = evaluated(Strategy(), concurrency=3, **work)
    figures = plan_of(stated, Strategy(), concurrency=3, **work).serving
    assert figures is not None
    assert figures.notes == ()


@pytest.mark.parametrize(("osl", "said"), [(72, False), (73, True)])
def test_requests_beyond_the_models_positions_are_said(osl: int, said: bool) -> None:
    work: dict[str, Any] = {"room_tokens": 500000, "isl": 131000, "osl": osl, "concurrency": 1}
    figures = plan_of(evaluated(Strategy(), **work), Strategy(), **work).serving
    assert figures is not None
    assert any("131,072 positions" in n for n in figures.notes) is said
