from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from problem_builders import cluster, dense

from autoparallel_core.cost.constants import core_constants
from autoparallel_core.errors import SpecError
from autoparallel_core.problem import make_problem
from autoparallel_core.spec.cluster import Efficiency
from autoparallel_core.spec.problem import Constant, EngineSpec, Problem
from autoparallel_core.spec.workload import InferenceWorkload, Software, TrainingWorkload

ARCH = evolve(dense(4, 1024, 16, 4, 4096, 32000), notes=("rope_theta assumed",))
ENGINE = EngineSpec(
    name="test",
    modes=("training", "inference"),
    default_version="2.1",
    summary="",
    software=Software(elementwise="eager", tp_overlap=True, assumed=("elementwise", "tp_overlap")),
    constants={"gemm_half_k": Constant(1.5, "mine", "here"), "own": Constant(7.0, "own", "here")},
)


class Host:
    def engine(self, name: str, mode: str) -> EngineSpec:
        assert (name, mode) in {("test", "training"), ("test", "inference")}
        return ENGINE


def make(workload: Any = None, n_gpus: int = 8, gpu: dict[str, Any] | None = None, **kw: Any) -> Problem:
    workload = workload or TrainingWorkload(4096, 64)
    return make_problem(ARCH, cluster(n_gpus, **gpu or {}), workload, engine="test", host=Host(), **kw)  # type: ignore[arg-type]


def test_constants_are_the_cores_with_the_engines_in_their_place() -> None:
    problem = make()
    assert set(problem.constants) == set(core_constants()) | {"own"}
    assert (problem.constant("gemm_half_k"), problem.constant("own")) == (1.5, 7.0)
    assert problem.constant("wgrad_accumulate_bytes") == core_constants()["wgrad_accumulate_bytes"].value


def test_software_of_the_engine_then_the_record_then_the_user() -> None:
    assert make().software == ENGINE.software
    mine = make(software={"elementwise": "fused"}).software
    assert (mine.elementwise, mine.tp_overlap, mine.assumed) == ("fused", True, ("tp_overlap",))
    recorded = TrainingWorkload(4096, 64, software=Software(ep_overlap=True, assumed=("dp_overlap",)))
    both = make(recorded, software={"cuda_graph": "partial"}).software
    assert (both.ep_overlap, both.cuda_graph, both.elementwise, both.assumed) == (True, "partial", "fused", ("dp_overlap",))


def test_gradients_in_16_bit_reach_the_software() -> None:
    assert make().software.grad_dtype == "fp32"
    assert make(TrainingWorkload(4096, 64, grad_reduce_in_fp32=False)).software.grad_dtype == "bf16"


MEASURED = {"training": {"all_reduce_bytes_per_s": 1e11, "all_reduce_latency_s": 1e-5}}


def test_assumptions_are_listed() -> None:
    assert make(gpu=MEASURED).assumptions == ("rope_theta assumed", "test 2.1", "elementwise: eager", "tp overlap: on")
    stated = make(gpu=MEASURED, engine_version="2.0", software={"elementwise": "fused", "tp_overlap": False})
    assert stated.assumptions == ("rope_theta assumed",)
    assert stated.engine_version == "2.0"


def test_unknown_software_setting_gives_near_names() -> None:
    with pytest.raises(SpecError, match="unknown software setting 'tp_overlapp'; did you mean tp_overlap"):
        make(software={"tp_overlapp": True})
    with pytest.raises(SpecError, match="unknown software setting 'assumed'"):
        make(software={"assumed": ()})


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (TrainingWorkload(0, 64), "the sequence length must be positive, not 0"),
        (TrainingWorkload(4096, -1), "the global batch size must be positive, not -1"),
        (TrainingWorkload(4096, 64, max_tokens_per_micro_batch=100), "at most 100 tokens cannot hold one sequence of 4096"),
        (TrainingWorkload(4096, 64, precision="bf61"), "unknown precision 'bf61'; did you mean bf16"),
        (TrainingWorkload(4096, 64, precision="nvfp4"), "T-80 has no fp4 tensor-core peak; it supports bf16, fp16, fp8"),
        (TrainingWorkload(4096, 64, task="lora", lora_rank=0), "the LoRA rank must be positive"),
        (InferenceWorkload(0, 1), r"the input length \(isl\) must be positive"),
        (InferenceWorkload(1, 0), r"the output length \(osl\) must be positive"),
        (InferenceWorkload(1, 1, concurrency=0), "the concurrency must be positive, not 0"),
        (
            InferenceWorkload(1000, 100, max_model_len=1099),
            "1000 .* 100 tokens do not fit a model length of 1099; allow at least 1100",
        ),
        (InferenceWorkload(1, 1, prefix_hit_rate=1.5), "the prefix hit rate must be between 0 and 1, not 1.5"),
        (InferenceWorkload(1, 1, accepted_length=0.5), "the accepted length per step must be at least 1"),
        (InferenceWorkload(1, 1, memory_fraction=90.0), "the memory fraction must be above 0 and at most 1, not 90.0"),
        (InferenceWorkload(1, 1, tpot_limit_s=0.0), "the time-per-token limit must be positive"),
    ],
)
def test_inconsistent_workloads_are_refused(workload: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make(workload)


def test_a_gpu_without_the_precision_is_refused() -> None:
    old = {"peak_flops": {"fp16": 125e12}}
    with pytest.raises(SpecError, match="T-80 has no bf16 tensor-core peak; it supports fp16"):
        make(gpu=old)
    assert make(TrainingWorkload(4096, 64, precision="fp16"), gpu=old).training.precision == "fp16"


def test_rates_of_a_gpu_that_nobody_measured_are_said() -> None:
    figures = {"gemm_bf16": 0.5, "hbm": 0.8, "all_reduce_bytes_per_s": 1e11, "all_reduce_latency_s": 1e-5}
    sources = {"training.gemm_bf16": "assumed: as a sister", "training.hbm": "measured here"}
    said = make(gpu={"training": figures, "sources": sources}).assumptions
    assert any("without a measurement: gemm_bf16 (" in a for a in said)
    assert not any("the link's own figures" in a for a in said)
    bare = make(gpu={"training": {"gemm_bf16": 0.5}, "sources": {"training.gemm_bf16": "measured here"}}).assumptions
    assert any("no all_reduce_bytes_per_s and no all_reduce_latency_s: the link's own" in a.replace("states ", "") for a in bare)
    guessed = Efficiency(0.5, 0.8, "as a sister", "assumed")
    serving = make(
        InferenceWorkload(128, 128), gpu={"gemm": {"bf16": guessed}, "attention": {"decode": evolve(guessed, origin="measured")}}
    )
    assert [a for a in serving.assumptions if "without a measurement" in a] == [
        "rates of T-80 without a measurement: gemm.bf16 (sources: autoparallel gpus show T-80)"
    ]
