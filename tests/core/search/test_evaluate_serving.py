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


def evaluated(strategy: Strategy, *, room_tokens: float, budget: str = "share_of_device", **work: Any) -> Evaluation:
    """On GPUs with room for so many tokens beside a whole copy of the weights."""
    reserved = 6e9 if budget != "share_of_free" else 1e9
    memory = WEIGHTS_BYTES + reserved + room_tokens * TOKEN_BYTES + 2e6
    policy = ServingPolicy(source="test", budget=budget, memory_fraction=1.0, rotary_cache=False)  # type: ignore[arg-type]
    gpu = toy_gpu(memory_bytes=memory)
    workload = InferenceWorkload(**({"isl": 1024, "osl": 256} | work))
    problem = Problem(
        toy_dense_arch(), build_cluster(gpu, 8), workload, evolve(ENGINE, serving=(policy,)), "1.0", constants=core_constants()
    )
    return evaluate_inference(problem, StrategyBatch.of([strategy]), Reserves())  # type: ignore[arg-type]


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
