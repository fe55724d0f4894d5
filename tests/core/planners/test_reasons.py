from __future__ import annotations

from typing import Any

from attrs import evolve
from problem_builders import dense, inference, training

from autoparallel_core.planners.reasons import exposed, idle, memory, next_best, no_room, notes, small_batch, with_reasons
from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, ServingFigures, StageMemory, TrainingFigures
from autoparallel_core.spec.problem import Constant
from autoparallel_core.spec.strategy import parse_strategy

ARCH = dense(8, 1024, 16, 4, 4096, 32000)
PROBLEM = training(ARCH, 64)


def plan(text: str, rate: float, seconds: dict[str, float], *, reserved: float = 70e9, host: float = 0.0) -> Plan:
    stages = (StageMemory(0, 4, {"weights": 10e9, "optimizer": 30e9, "activations": 20e9}), StageMemory(1, 4, {"weights": 50e9}))
    figures = TrainingFigures(1.0, rate, 0.5, 8, (4, 4), 0.0)
    return Plan(
        parse_strategy(text), CostBreakdown(seconds), MemoryBreakdown(stages, 80e9, reserved, host), "fits", training=figures
    )


FIRST = plan("tp8 pp2 dp4", 1000.0, {"gemm": 6.0, "tp_comm": 3.0, "bubble": 1.0})
SECOND = plan("tp4 pp4 dp4", 800.0, {"gemm": 6.0, "tp_comm": 1.5, "bubble": 5.0})


def test_exposed_costs_with_their_shares() -> None:
    assert exposed(FIRST) == (
        "largest exposed cost: tensor-parallel communication 30.0% (3 s), then the pipeline bubble 10.0% (1 s); 40.0% in all"
    )
    assert exposed(plan("tp1 pp1 dp64", 1.0, {"gemm": 2.0, "host": 0.004})) == (
        "largest exposed cost: waiting for the host 0.2% (4 ms)"
    )
    assert exposed(plan("tp1 pp1 dp64", 1.0, {"gemm": 2.0})) == "nothing but the model's own arithmetic takes time"


def test_memory_of_the_deciding_stage() -> None:
    assert memory(PROBLEM, FIRST) == (
        "memory on stage 0 is held by optimizer state (30.0 GB) and activations (20.0 GB); 10.0 GB of 80.0 GB stay free"
    )
    over = plan("tp8 pp2 dp4", 1.0, {"gemm": 1.0}, reserved=90e9, host=3e12)
    assert memory(PROBLEM, over) == (
        "memory on stage 0 needs 90.0 GB of 80.0 GB, 10.0 GB too much: optimizer state (30.0 GB) and activations (20.0 GB); "
        "the host needs 3,000.0 GB of 2,000.0 GB per node"
    )


def test_next_best_says_by_what_it_loses() -> None:
    assert next_best(PROBLEM, FIRST, SECOND) == (
        "next best: tp4 pp4 dp4 mbs1 is 20.0% slower, mostly by 4 s more for the pipeline bubble"
    )
    tie = plan("tp4 pp4 dp4", 999.5, {"gemm": 10.0})
    assert next_best(PROBLEM, FIRST, tie) == "next best: tp4 pp4 dp4 mbs1 is as fast (within 1%) and less plain"


def test_every_plan_but_the_last_is_compared() -> None:
    first, second = with_reasons(PROBLEM, [FIRST, SECOND])
    assert (len(first.reasons), len(second.reasons)) == (3, 2)
    assert evolve(first, reasons=()) == FIRST


def served(text: str, rate: float, ttft: float, tpot: float) -> Plan:
    figures: dict[str, Any] = dict.fromkeys(
        ("batch_per_instance", "kv_bytes_per_gpu", "weights_bytes_per_gpu", "prefill_s", "e2e_tpot_s", "output_tokens_per_s",
         "requests_per_s"), 1.0,
    )  # fmt: skip
    serving = ServingFigures(
        instances=1, gpus_per_instance=8, kv_tokens_per_instance=1, max_concurrency=1, ttft_s=ttft, tpot_s=tpot,
        ttft_interval_s=(ttft, ttft), tpot_interval_s=(tpot, tpot), output_tokens_per_s_per_gpu=rate, **figures,
    )  # fmt: skip
    return evolve(plan(text, 0.0, {"gemm": 1.0}), strategy=parse_strategy(text), training=None, serving=serving)


def test_serving_goals_compare_by_their_own_measure() -> None:
    fast, busy = served("tp8 pp1 dp1", 10.0, 1.0, 0.01), served("tp1 pp1 dp8", 40.0, 2.0, 0.03)
    latency = inference(ARCH, 8, osl=101, goal="latency")
    assert next_best(latency, fast, busy) == "next best: tp1 pp1 dp8 is 60.0% slower"
    assert next_best(inference(ARCH, 8), busy, fast) == "next best: tp8 pp1 dp1 is 75.0% slower"
    half = served("tp4 pp1 dp1", 10.0, 1.0, 0.01)  # half of the GPUs, half of the tokens: the same cost per token
    same = served("tp8 pp1 dp1", 20.0, 1.0, 0.01)
    assert "as fast" in next_best(inference(ARCH, 8, goal="cost"), same, half)


def steps(text: str, micro_batches: int, seconds: dict[str, float]) -> Plan:
    figures = TrainingFigures(10.0, 1000.0, 0.4, micro_batches, (4, 4, 4, 4), 0.1)
    return evolve(plan(text, 1000.0, seconds), training=figures)


def test_a_small_batch_is_said_with_the_batch_that_would_do() -> None:
    assert small_batch(steps("tp8 pp4 dp2 mbs2", 4, {"gemm": 6.0, "bubble": 3.0, "dp_comm": 1.0})) == (
        "the batch is small for this cluster: 4 micro-batches on 4 pipeline stages; 64 sequences per step would spread the "
        "pipeline bubble (30.0% of the step) and gradient and parameter synchronisation (10.0% of the step)"
    ), "2 replicas × 4 stages × 4 micro-batches of 2"
    single = small_batch(steps("tp8 pp1 dp8 mbs1", 1, {"gemm": 6.0, "tp_comm": 3.0, "dp_comm": 1.0}))
    assert "1 micro-batch per GPU; 32 sequences per step would spread tensor-parallel communication (30.0%" in single


def test_a_batch_that_is_large_enough_is_not_mentioned() -> None:
    assert not small_batch(steps("tp8 pp4 dp2 mbs2", 16, {"gemm": 8.0, "bubble": 2.0}))
    assert not small_batch(steps("tp8 pp4 dp2 mbs2", 8, {"gemm": 9.5, "bubble": 0.5})), "interleaved: hardly a bubble"
    uneven = small_batch(steps("tp8 pp4 dp2 mbs2", 64, {"gemm": 7.0, "bubble": 3.0}))
    assert "more sequences per step would spread" in uneven


def test_a_tight_best_names_the_best_with_room() -> None:
    brim = evolve(plan("tp2 pp4 dp8", 1000.0, {"gemm": 6.0}, reserved=79e9), verdict="tight")
    assert no_room(brim, [brim, FIRST, SECOND]) == (
        "#1 is tight (1.0 GB of 80.0 GB stay free): measured runs of such plans both ran and failed; "
        "#2 tp8 pp2 dp4 mbs1 leaves 10.0 GB and is as fast (within 1%)"
    )
    assert no_room(brim, [brim, SECOND]).endswith("#2 tp4 pp4 dp4 mbs1 leaves 10.0 GB and is 20.0% slower")
    assert "none shown here" in no_room(brim, [brim])
    assert not no_room(FIRST, [FIRST, SECOND])
    assert not no_room(brim, [])


def test_a_long_wait_for_the_scheduler_is_said() -> None:
    """8 together, 20 ms a step: 7/8 of 31 steps are 543 ms of the 1 s."""
    question = inference(ARCH, 8)
    often, rare = (Constant(n, "decode steps until it is looked at", "toy") for n in (3.0, 31.0))
    found = served("tp8 pp1 dp1", 100.0, 1.0, 0.02)
    assert found.serving is not None
    full = evolve(found, serving=evolve(found.serving, batch_per_instance=8.0))
    seldom, soon = (evolve(question, constants={"serving_ttft_steps": c}) for c in (rare, often))
    assert any(note.startswith("54% of TTFT are 31 decode steps until") for note in notes(seldom, full))
    assert not any("decode steps" in note for note in (*notes(soon, full), *notes(seldom, found)))


def test_idle_gpus_are_counted() -> None:
    assert idle(PROBLEM, plan("tp8 pp4 dp1", 1.0, {"gemm": 1.0})) == "32 of the 64 GPUs stay idle, and figures per GPU count them"
    assert not idle(PROBLEM, FIRST)
