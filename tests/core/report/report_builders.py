"""Plans and results built by hand, so that reports are tested on figures that are known."""

from __future__ import annotations

from problem_builders import gpu, llama_70b

from autoparallel_core.search.result import (
    CostBreakdown,
    MemoryBreakdown,
    Plan,
    SearchResult,
    ServingFigures,
    StageMemory,
    TrainingFigures,
)
from autoparallel_core.spec.cluster import Cluster, Tier
from autoparallel_core.spec.problem import Constant, EngineSpec, Problem
from autoparallel_core.spec.strategy import parse_strategy
from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload

PARAMETERS = {"total": 70.6e9, "text": 70.6e9, "active": 70.6e9, "vision": 0, "mtp": 0}


def cluster() -> Cluster:
    tiers = (Tier("scale-up", 8, 450e9, 5e-6, "data sheet"), Tier("scale-out", 64, 50e9, 2e-5, "data sheet"))
    return Cluster(gpu(), 64, 8, tiers, 2e12, overrides=("bw_ib=50 GB/s",))


def problem(mode: str = "training") -> Problem:
    workload = (
        TrainingWorkload(seq_len=4096, global_batch_size=512)
        if mode == "training"
        else InferenceWorkload(isl=1000, osl=500, concurrency=96)
    )
    engine = EngineSpec("plain", (mode,), "1.2", "Plain: does what it is told")  # type: ignore[arg-type]
    constants = {
        "bubble_share": Constant(0.5, "share", "a paper", "fitted"),
        "serving_step_s": Constant(1e-3, "host time per step", "runs", "measured"),
    }
    return Problem(llama_70b(), cluster(), workload, engine, "1.2", constants, assumptions=("--batch-size 512",))


def training_plan(notation: str = "tp8 pp4 dp2 zero1 mbs1", rate: float = 1000.0, verdict: str = "fits") -> Plan:
    reserved = {"fits": 60e9, "tight": 78e9, "does not fit": 92e9}[verdict]
    stages = (
        StageMemory(0, 20, {"weights": 10e9, "activations": 40e9}, {"context": 2e9, "allocator_slack": reserved - 52e9}),
        StageMemory(3, 20, {"weights": 11e9, "activations": 20e9, "logits": 3e9}),
    )
    return Plan(
        strategy=parse_strategy(notation),
        cost=CostBreakdown({"gemm": 1.5, "tp_comm": 0.375, "bubble": 0.125}),
        memory=MemoryBreakdown(stages, 80e9, reserved),
        verdict=verdict,  # type: ignore[arg-type]
        training=TrainingFigures(2.0, rate, 0.45, 256, (20, 20, 20, 20), 0.0625),
        reasons=("largest exposed cost: TP",),
    )


def serving_plan(notation: str = "tp4 pp1 dp2 mbs1", rate: float = 500.0) -> Plan:
    return Plan(
        strategy=parse_strategy(notation),
        cost=CostBreakdown({"gemm": 0.015, "kv_read": 0.005}),
        memory=MemoryBreakdown((StageMemory(0, 80, {"weights": 35e9, "activation": 5e9, "kv_cache": 30e9}),), 80e9, 70e9),
        verdict="fits",
        serving=ServingFigures(
            instances=2,
            gpus_per_instance=4,
            batch_per_instance=48.0,
            kv_tokens_per_instance=366_000,
            kv_bytes_per_gpu=30e9,
            weights_bytes_per_gpu=35e9,
            prefill_s=0.08,
            ttft_s=0.2,
            ttft_interval_s=(0.15, 0.3),
            tpot_s=0.02,
            tpot_interval_s=(0.017, 0.025),
            e2e_tpot_s=0.0204,
            output_tokens_per_s=4000.0,
            output_tokens_per_s_per_gpu=rate,
            requests_per_s=8.0,
            max_concurrency=488,
        ),
        reasons=("KV cache is the limit",),
    )


def result(mode: str = "training", n: int = 3, **changes: object) -> SearchResult:
    plan = training_plan if mode == "training" else serving_plan
    plans = tuple(plan(rate=1000.0 - 50 * i) for i in range(n))
    fields: dict[str, object] = {
        "problem": problem(mode),
        "plans": plans,
        "pareto": plans[:1],
        "enumerated": 5000,
        "evaluated": 3796,
        "fitting": 1200,
        "refused": {"heads % tp": 812, "experts % ep": 392},
        "elapsed_s": 0.25,
        "assumptions": ("ep overlap: off",),
        "blame": {"padding": "plain", "tp_comm": "plain"},
    }
    return SearchResult(**{**fields, **changes})  # type: ignore[arg-type]
