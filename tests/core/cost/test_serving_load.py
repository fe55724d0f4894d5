"""The steady state of a load: what must hold for any model, layout and concurrency."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.cluster import build_cluster
from autoparallel_core.cost.constants import core_constants
from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_load import Demand, SteadyState, steady_state
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu, toy_moe_arch

ENGINE = EngineSpec(name="toy", modes=("inference",), default_version="1.0", summary="An engine for tests.")
ARCHS = {"dense": toy_dense_arch(), "moe": toy_moe_arch()}
LAYOUTS = (
    Strategy(), Strategy(tp=8), Strategy(tp=2, pp=4), Strategy(pp=8), Strategy(tp=4, dp=2),
    Strategy(attn_dp=8, ep=8), Strategy(tp=2, attn_dp=4, ep=2, etp=4),
)  # fmt: skip
AMPLE = 1e9


def state(
    concurrencies: list[float],
    strategy: Strategy,
    kind: str = "dense",
    *,
    capacity: float = AMPLE,
    n_gpus: int = 8,
    **workload: Any,
) -> SteadyState:
    """One point per concurrency; infinite for as many as fit."""
    work = InferenceWorkload(**({"isl": 1024, "osl": 256, "max_num_seqs": 100_000} | workload))
    problem = Problem(ARCHS[kind], build_cluster(toy_gpu(), n_gpus), work, ENGINE, "1.0", constants=core_constants())
    batch = StrategyBatch.of([strategy] * len(concurrencies))
    demand = Demand.of(problem, len(batch))
    demand.concurrency[:] = concurrencies
    return steady_state(ServingHardware(problem), batch, np.full(len(batch), capacity), demand)


layouts = st.sampled_from(LAYOUTS)
kinds = st.sampled_from(sorted(ARCHS))


@given(layout=layouts, kind=kinds, isl=st.integers(16, 16384), osl=st.integers(2, 8192))
@settings(max_examples=60, deadline=None)
def test_throughput_and_time_per_token_rise_with_concurrency(layout: Strategy, kind: str, isl: int, osl: int) -> None:
    s = state([1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512], layout, kind, isl=isl, osl=osl)
    # flat where a pipeline has as many micro-batches as its waiting stages can use; where prompts are most of the work they
    # slow down a little in steps that decode ever more sequences
    prompts = s.requests_per_s * s.prefill_s / layout.dp > 0.5
    falls = np.where(prompts[1:], 0.05, 1e-3)
    assert np.all(np.diff(s.output_tokens_per_s) >= -falls * s.output_tokens_per_s[:-1])
    assert s.output_tokens_per_s[-1] > 4 * s.output_tokens_per_s[0] or prompts[-1]
    assert np.all(np.diff(s.tpot_s) >= -1e-12)
    assert np.all(np.diff(s.ttft_s) >= -1e-12)


@given(layout=layouts, kind=kinds, full=st.integers(1, 64))
@settings(max_examples=30, deadline=None)
def test_a_full_cache_makes_requests_wait_and_adds_no_throughput(layout: Strategy, kind: str, full: int) -> None:
    reserved = 1024 + core_constants()["serving_reserved_output"].value * 256
    s = state([full * layout.dp, 2 * full * layout.dp, 8 * full * layout.dp], layout, kind, capacity=(full + 0.5) * reserved)
    assert s.output_tokens_per_s == pytest.approx(np.full(3, s.output_tokens_per_s[0]))
    assert s.batch_per_instance == pytest.approx([full] * 3)
    assert s.ttft_s[2] > s.ttft_s[1] > s.ttft_s[0]


@given(layout=layouts, kind=kinds, concurrency=st.integers(1, 1024), load=st.sampled_from(("closed", "offline")))
@settings(max_examples=40, deadline=None)
def test_causes_sum_to_the_time_per_token(layout: Strategy, kind: str, concurrency: int, load: str) -> None:
    s = state([concurrency], layout, kind, load=load, requests=1500 if load == "offline" else None, accepted_length=1.7)
    assert sum(v[0] for v in s.seconds.values()) == pytest.approx(s.tpot_s[0], rel=1e-12)


@given(kind=kinds, concurrency=st.integers(1, 1024), pp=st.sampled_from((2, 4, 8)))
@settings(max_examples=40, deadline=None)
def test_a_pipeline_never_answers_a_request_sooner_than_one_stage_would(kind: str, concurrency: int, pp: int) -> None:
    """All stages pass one after another, and every micro-batch reads the weights."""
    piped, whole = (state([c], s, kind) for c, s in ((concurrency, Strategy(pp=pp)), (max(concurrency / pp, 1), Strategy())))
    assert piped.decode_s[0] >= whole.decode_s[0] * (1 - 1e-9)


def test_a_single_sequence_gains_nothing_from_more_stages() -> None:
    tpot = [state([1], Strategy(pp=pp)).tpot_s[0] for pp in (1, 2, 4, 8)]
    assert tpot == sorted(tpot)


def test_independent_instances_share_the_requests() -> None:
    two, one = state([16], Strategy(tp=4, dp=2)), state([8], Strategy(tp=4))
    assert two.tpot_s == pytest.approx(one.tpot_s)
    assert two.output_tokens_per_s == pytest.approx(2 * one.output_tokens_per_s)


@given(
    layout=layouts, kind=kinds, concurrency=st.integers(1, 1024), osl=st.integers(1, 2048), full=st.integers(1, 512)
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_little_s_law_of_the_closed_loop(layout: Strategy, kind: str, concurrency: int, osl: int, full: int) -> None:
    s = state([concurrency], layout, kind, osl=osl, capacity=full * (1024.0 + osl))
    life = s.ttft_s + s.tpot_s * (osl - 1)  # waiting for a place included
    assert s.requests_per_s * life == pytest.approx(concurrency)
    assert s.output_tokens_per_s == pytest.approx(osl * s.requests_per_s)


@given(layout=st.sampled_from([x for x in LAYOUTS if x.pp == x.attn_dp == 1]), concurrency=st.integers(1, 4096))
@settings(max_examples=30, deadline=None)
def test_prompts_alone_are_answered_no_faster_than_they_are_processed(layout: Strategy, concurrency: int) -> None:
    s = state([concurrency], layout, osl=1, isl=8192)
    assert s.requests_per_s[0] * s.prefill_s[0] <= 1.1 * layout.dp
    assert s.tpot_s[0] == 0.0  # one output token has no time to a second


def test_one_request_is_served_by_one_of_the_instances() -> None:
    two, one = state([1], Strategy(tp=4, dp=2)), state([1], Strategy(tp=4))
    assert two.output_tokens_per_s == pytest.approx(one.output_tokens_per_s)
    assert two.ttft_s == pytest.approx(one.ttft_s)
    assert two.batch_per_instance == pytest.approx(0.5)


@given(layout=layouts, kind=kinds, isl=st.integers(16, 16384))
@settings(max_examples=30, deadline=None)
def test_a_lone_request_waits_for_nobody_s_decode_steps(layout: Strategy, kind: str, isl: int) -> None:
    """Prefill, the fixed offset, and at most its own prompt once more."""
    s = state([1], layout, kind, isl=isl)
    c = core_constants()
    assert s.ttft_s[0] <= s.prefill_s[0] * (1 + c["serving_first_wave"].value) + c["serving_ttft_offset_s"].value + 1e-9


def test_a_prompt_wholly_in_the_cache_runs_its_last_token_again() -> None:
    whole, rest = (state([8], Strategy(tp=8), prefix_hit_rate=h) for h in (1.0, 1 - 1 / 1024))
    assert whole.ttft_s == pytest.approx(rest.ttft_s)
    assert whole.prefill_s[0] > 0


def test_a_cached_prefix_is_not_processed_again() -> None:
    cold, warm = (state([32], Strategy(tp=8), isl=8192, prefix_hit_rate=h) for h in (0.0, 0.9))
    assert warm.prefill_s[0] < 0.3 * cold.prefill_s[0]
    assert warm.tpot_s[0] < cold.tpot_s[0]
    assert warm.decode_s[0] == pytest.approx(cold.decode_s[0])  # the cache is read all the same


def test_accepted_drafts_shorten_the_time_per_token_less_than_their_number() -> None:
    plain, drafted = (state([4], Strategy(tp=8), accepted_length=a) for a in (1.0, 2.0))
    assert plain.tpot_s[0] / 2 < drafted.tpot_s[0] < plain.tpot_s[0]


def test_offline_runs_of_few_requests_end_with_a_small_batch() -> None:
    kept, drained = (
        state([np.inf], Strategy(tp=8), load="offline", requests=r, capacity=200 * 1152.0) for r in (None, 250)
    )  # fmt: skip
    assert kept.batch_per_instance[0] == drained.batch_per_instance[0] == 200
    assert drained.output_tokens_per_s[0] < kept.output_tokens_per_s[0]
    few = state([np.inf], Strategy(tp=8), load="offline", requests=50, capacity=200 * 1152.0)
    assert few.batch_per_instance[0] == 50


def test_offline_throughput_bounds_the_closed_loop_of_the_same_batch() -> None:
    offline = state([np.inf], Strategy(tp=8), load="offline", capacity=64 * 1152.0)
    closed = state([64], Strategy(tp=8))
    assert offline.output_tokens_per_s[0] == pytest.approx(closed.output_tokens_per_s[0], rel=0.15)
