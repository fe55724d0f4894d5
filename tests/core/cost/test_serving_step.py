"""One serving step against hand calculations and the bounds that no kernel can beat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.cluster import build_cluster
from autoparallel_core.cost.constants import core_constants
from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_step import Load, attended_per_token, step_seconds
from autoparallel_core.errors import SpecError
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency, Gpu
from autoparallel_core.spec.op import Attention, Axis
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.quantization import FORMATS, int_format
from autoparallel_core.spec.strategy import StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu, toy_moe_arch

ENGINE = EngineSpec(name="toy", modes=("inference",), default_version="1.0", summary="An engine for tests.")
DENSE, MOE = toy_dense_arch(), toy_moe_arch()
HIDDEN, VOCAB, LAYERS, EXPERT = 4096, 32768, 16, 2048
ATTENTION_WEIGHTS = HIDDEN * (32 + 8 + 8) * 128 + 32 * 128 * HIDDEN
MLP_WEIGHTS = 3 * HIDDEN * 16384


def hardware(arch: Any = DENSE, gpu: Gpu | None = None, n_gpus: int = 8, **workload: Any) -> ServingHardware:
    work = InferenceWorkload(**({"isl": 1024, "osl": 256, "concurrency": 8} | workload))
    cluster = build_cluster(gpu or toy_gpu(), n_gpus)
    return ServingHardware(Problem(arch, cluster, work, ENGINE, "1.0", constants=core_constants()))


def load(decode: float = 0.0, context: float = 1024.0, prefill: float = 0.0, **more: float) -> Load:
    given = {"verified": 1.0, "prompt": max(prefill, 1.0), "cached": 0.0, "sampled": max(decode, 1.0)} | more
    return Load(**{k: np.array([v]) for k, v in (given | {"decode": decode, "context": context, "prefill": prefill}).items()})


def total(hw: ServingHardware, x: Load, **columns: int) -> float:
    seconds = step_seconds(hw, StrategyBatch.from_columns(1, **columns), x)
    assert all(v[0] >= 0 for v in seconds.values())
    return float(sum(v[0] for v in seconds.values()))


def test_a_gemm_is_its_launch_and_the_hypotenuse_of_compute_and_memory() -> None:
    m, n, k = (np.array([v]) for v in (8.0, 4096.0, 16384.0))
    compute = 2 * 8 * 4096 * 16384 / (1e15 * 0.7)
    memory = (4096 * 16384 * 2 + 2 * 8 * (4096 + 16384)) / (4e12 * 0.8)
    assert hardware().gemm_s(m, n, k, FORMATS["bf16"])[0] == pytest.approx(3e-6 + np.hypot(compute, memory))


def test_low_precision_reads_fewer_bytes_and_casts_first() -> None:
    m, n, k = (np.array([v]) for v in (1.0, 4096.0, 16384.0))
    memory = (4096 * 16384 + 2 * (4096 + 16384)) / (4e12 * 0.8)
    compute = 2 * 4096 * 16384 / (2e15 * 0.7)
    cast = core_constants()["serving_cast_s"].value
    assert hardware().gemm_s(m, n, k, FORMATS["fp8"])[0] == pytest.approx(3e-6 + cast + np.hypot(compute, memory))


def test_formats_without_matrix_units_are_computed_in_16_bit() -> None:
    hw = hardware()
    assert hw.kernel("gemm", FORMATS["nvfp4"]).dtype == "bf16"
    assert hw.kernel("gemm", int_format(4, 128, zero_point=False)).peak_flops == 1e15
    assert hw.kernel("gemm", FORMATS["fp8_block128"]).dtype == "fp8"


def test_a_kernel_measured_here_comes_before_one_assumed_from_another_gpu() -> None:
    measured, assumed = (Efficiency(0.5, 0.5, "test", origin) for origin in ("measured", "assumed"))
    gpu = evolve(toy_gpu(), expert_gemm={"bf16": measured, "int4_wo": assumed})
    assert hardware(gpu=gpu).kernel("expert_gemm", int_format(4, 128, zero_point=False)).efficiency is measured


def test_the_engines_own_attention_kernel_is_used() -> None:
    slow, fast = (Efficiency(e, e, "test", "measured") for e in (0.1, 0.9))
    gpu = evolve(toy_gpu(), attention={"decode": slow, "decode@toy": fast, "decode@other": slow})
    moved, flops = np.array([4e9]), np.array([0.0])
    assert hardware(gpu=gpu).attention_s("decode_fp8", flops, moved)[0] == pytest.approx(1e-3 / 0.9)
    with pytest.raises(SpecError, match="no attention efficiency for 'prefill'"):
        hardware(gpu=gpu).attention_s("prefill", flops, moved)


def test_the_engines_own_all_reduce_is_used() -> None:
    def curve(latency_s: float) -> tuple[CollectiveCurve, ...]:
        return (CollectiveCurve(8, 1e12, latency_s, "test"),)

    gpu = evolve(
        toy_gpu(),
        collectives={"all_reduce": curve(50e-6), "all_reduce_custom": curve(5e-6), "all_reduce_custom@toy": curve(9e-6)},
    )
    seconds = hardware(gpu=gpu).collective_s("all_reduce", np.array([8e3]), np.array([8.0]))
    assert seconds[0] == pytest.approx(9e-6 + 1.75 * 8e3 / 1e12)


def test_unmeasured_collectives_run_at_the_links_rate_and_across_nodes_at_the_nics() -> None:
    hw = hardware(n_gpus=16)
    inside = hw.collective_s("all_reduce", np.array([1e9]), np.array([8.0]))[0]
    assert inside == pytest.approx(core_constants()["serving_collective_s"].value + 1.75 * 1e9 / 450e9)
    across = hw.collective_s("all_reduce", np.array([1e9]), np.array([16.0]))[0]
    assert across > inside + 1e9 / 8 / 50e9


@given(decode=st.integers(1, 512), context=st.integers(1, 32768), tp=st.sampled_from((1, 2, 4, 8)))
@settings(max_examples=40, deadline=None)
def test_decode_reads_weights_and_cache_no_faster_than_memory(decode: int, context: int, tp: int) -> None:
    weights = (LAYERS * (ATTENTION_WEIGHTS + MLP_WEIGHTS) + HIDDEN * VOCAB) * 2
    cache = decode * context * LAYERS * 2 * 8 * 128 * 2
    assert total(hardware(), load(decode, context), tp=tp) >= (weights + cache) / tp / 4e12


@given(tokens=st.integers(1, 16384), tp=st.sampled_from((1, 2, 4, 8)))
@settings(max_examples=40, deadline=None)
def test_prefill_computes_no_faster_than_the_peak(tokens: int, tp: int) -> None:
    flops = 2 * tokens * LAYERS * (ATTENTION_WEIGHTS + MLP_WEIGHTS) + LAYERS * 4 * 32 * 128 * tokens**2 / 2
    assert total(hardware(), load(prefill=tokens), tp=tp) >= flops / tp / 1e15


@given(decode=st.integers(1, 4096), ep=st.sampled_from((1, 2, 4, 8)))
@settings(max_examples=40, deadline=None)
def test_only_touched_experts_are_read(decode: int, ep: int) -> None:
    hw = hardware(MOE)
    seconds = step_seconds(hw, StrategyBatch.from_columns(1, tp=8, ep=ep, etp=8 // ep), load(decode))["expert_gemm"][0]
    sparse, one_expert = LAYERS - 1, 3 * HIDDEN * EXPERT * 2
    whole = sparse * 32 * one_expert / 8 / 4e12
    # one token touches four experts on average over the ranks; many tokens all of them
    draws = 1 + core_constants()["serving_routing_spread"].value * (decode - 1)
    touched = 1 - (1 - 4 / 32) ** draws
    assert seconds >= touched * whole
    if decode == 1:
        assert seconds < 0.8 * whole + sparse * 60e-6


def test_drafts_to_verify_cost_matrix_work_but_read_the_cache_once() -> None:
    hw = hardware()
    plain, drafted = (step_seconds(hw, StrategyBatch.from_columns(1), load(256, 8192, verified=v)) for v in (1.0, 4.0))
    assert drafted["gemm"][0] > 1.3 * plain["gemm"][0]
    assert drafted["attention"][0] < 1.3 * plain["attention"][0]


@pytest.mark.parametrize(
    ("facts", "prompt", "cached", "keys"),
    [
        ({}, 1000.0, 0.0, 500.0),
        ({}, 1000.0, 0.5, 750.0),  # the second half of the prompt sees 500 to 1000 keys
        ({"window": 100}, 1000.0, 0.0, (100 * 100 / 2 + 900 * 100) / 1000),
        ({"chunk": 100}, 1000.0, 0.0, 50.0),
        ({"causal": False}, 1000.0, 0.0, 1000.0),
        ({"tokens_per_key": 4}, 1000.0, 0.0, 125.0),
    ],
)
def test_keys_that_a_prompt_token_attends_to(facts: dict[str, Any], prompt: float, cached: float, keys: float) -> None:
    op = Attention("a", heads=Axis("heads", 8, 128), kv_heads=Axis("kv_heads", 8, 128), v_width=128, **facts)
    assert attended_per_token(np.array([prompt]), np.array([cached]), op, None)[0] == pytest.approx(keys)


def test_sparse_attention_limits_the_keys() -> None:
    op = Attention("a", heads=Axis("heads", 8, 128), kv_heads=Axis("kv_heads", 8, 128), v_width=128, top_k_keys=100)
    assert attended_per_token(np.array([1000.0]), np.array([0.0]), op, 100)[0] == pytest.approx((5000 + 90000) / 1000)


def test_fp32_computes_at_the_rate_of_32_bit_and_moves_four_bytes() -> None:
    m, n, k = (np.array([v]) for v in (4096.0, 4096.0, 16384.0))
    compute = 2 * 4096 * 4096 * 16384 / (5e13 * 0.7)
    memory = (4096 * 16384 * 4 + 4 * 4096 * (4096 + 16384)) / (4e12 * 0.8)
    slow, fast = hardware(precision="fp32"), hardware()
    assert slow.gemm_s(m, n, k, FORMATS["fp32"])[0] == pytest.approx(3e-6 + np.hypot(compute, memory))
    work = load(prefill=8192)
    assert total(slow, work, tp=8) > 10 * total(fast, work, tp=8)  # twenty times the compute, and the same collectives
    # a product kept in 32 bit inside a 16-bit model is not what the user asked of the whole of it
    assert fast.kernel("gemm", FORMATS["fp32"]).peak_flops == 1e15


def test_fp32_is_refused_where_the_gpu_states_no_rate_for_it() -> None:
    gpu = toy_gpu(peak_flops={"bf16": 1e15, "fp16": 1e15})
    with pytest.raises(SpecError, match="fp32"):
        hardware(gpu=gpu, precision="fp32").kernel("gemm", FORMATS["fp32"])
