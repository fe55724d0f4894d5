from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve

from autoparallel_core.errors import SpecError
from autoparallel_core.ops.curves import curve_for, curve_seconds
from autoparallel_core.profiles.apply import Applied, apply_profile
from autoparallel_core.profiles.files import parse_profile
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency
from autoparallel_core.testing.toys import toy_gpu

GPU = toy_gpu(training={k: v for k, v in toy_gpu().training.items() if k != "gemm_bf16"})


def applied(gpu=GPU, **tables: Any) -> Applied:
    return apply_profile(gpu, parse_profile({"gpu": gpu.name, "source": "bench", **tables}, "profile x"))


def gemm_rows(compute: float, memory: float, fixed: float, dtype: str = "bf16") -> list[dict[str, Any]]:
    rows = []
    for m in (16, 256, 4096, 16384):
        for n, k in ((4096, 4096), (14336, 4096), (4096, 14336)):
            peak, width = (1e15, 2.0) if dtype == "bf16" else (2e15, 1.0)
            seconds = fixed + np.hypot(2 * m * n * k / peak / compute, (n * k * width + 2 * m * (n + k)) / 4e12 / memory)
            rows.append({"dtype": dtype, "m": m, "n": n, "k": k, "seconds": float(seconds)})
    return rows


def test_gemm_efficiencies_are_fitted_and_points_kept():
    gpu = applied(gemm=gemm_rows(0.62, 0.77, 6e-6)).gpu
    e = gpu.gemm["bf16"]
    assert (e.compute, e.memory, e.fixed_s) == (
        pytest.approx(0.62, rel=0.02),
        pytest.approx(0.77, rel=0.05),
        pytest.approx(6e-6, rel=0.1),
    )
    assert e.origin == "measured"
    assert e.source.startswith("bench: 12 points")
    assert gpu.gemm["fp16"] == e  # the same units
    assert gpu.gemm["fp8"] == GPU.gemm["fp8"]
    assert len(gpu.tables["gemm.bf16"].seconds) == 12


def test_the_training_plateau_excludes_what_the_length_explains():
    """t = 2mnk/(P·e·k/(k+half)): the plateau is e."""
    rows = [
        {"dtype": "bf16", "m": 16384, "n": 16384, "k": k, "seconds": 2 * 16384**2 * k / (1e15 * 0.7 * k / (k + 100.0))}
        for k in (512, 1024, 4096, 16384)
    ]
    found = applied(gemm=rows)
    assert found.gpu.training["gemm_bf16"] == pytest.approx(0.7, rel=1e-6)
    assert found.gpu.sources["training.gemm_bf16"].startswith("measured: median of the 1 largest of 4 points")


def test_an_in_situ_constant_moves_with_the_operator():
    """The preset's operator reaches 0.70 and its steps 0.66; the measured one reaches 0.63."""
    preset = evolve(
        GPU,
        gemm={"bf16": Efficiency(0.70, 0.8, "tables", "measured", 3e-6)},
        training={**GPU.training, "gemm_bf16": 0.66},
    )
    found = applied(preset, gemm=gemm_rows(0.63, 0.8, 3e-6))
    assert found.gpu.training["gemm_bf16"] == pytest.approx(0.66 * 0.9, rel=0.01)
    assert "the preset's 0.66 times 0.9" in found.gpu.sources["training.gemm_bf16"]


def test_attention_forward_backward_and_decode():
    def row(phase: str, s: int, seconds: float) -> dict[str, Any]:
        q = 1 if phase == "decode" else s
        return {"phase": phase, "dtype": "bf16", "batch": 4, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": q, "kv_len": s,
                "seconds": seconds}  # fmt: skip

    lengths = (1024, 4096, 16384)
    flops = {s: 4 * 4 * 32 * 128 * s * s / 2 for s in lengths}
    forward = [row("forward", s, flops[s] / (1e15 * 0.5)) for s in lengths]
    backward = [row("backward", s, 2.5 * flops[s] / (1e15 * 0.4)) for s in lengths]
    cache = {s: 2 * 4 * s * 8 * 128 * 2 for s in lengths}
    decode = [row("decode", s, 5e-6 + cache[s] / (4e12 * 0.8)) for s in lengths]
    gpu = evolve(GPU, training={k: v for k, v in GPU.training.items() if not k.startswith("attention")})
    found = applied(gpu, attention=[*forward, *backward, *decode])
    assert found.gpu.attention["prefill"].compute == pytest.approx(0.5, rel=0.03)
    e, context = found.gpu.attention["decode"], 8192  # three lengths do not tell the two shares apart, but the time
    work, moved = 4 * 4 * 32 * 128 * context / 1e15, 2 * 4 * context * 8 * 128 * 2 / 4e12
    assert e.fixed_s + np.hypot(work / e.compute, moved / e.memory) == pytest.approx(5e-6 + moved / 0.8, rel=0.02)
    assert found.constants["attention_backward_efficiency"][0] == pytest.approx(0.8)
    assert found.gpu.training["attention_fused"] == pytest.approx(0.5 * (16384 + 400) / 16384, rel=0.01)
    assert found.gpu.training["attention_flash2"] == found.gpu.training["attention_fused"]
    assert "as the kernel 'fused'" in found.gpu.sources["training.attention_flash2"]


def test_collectives_become_curves_and_training_rates():
    sizes = [2**k for k in range(12, 31, 2)]
    rows = [{"kind": "all_reduce", "bytes": b, "ranks": 8, "seconds": 2e-5 + 1.75 * b / 3e11} for b in sizes]
    found = applied(collectives=rows)
    (curve,) = found.gpu.collectives["all_reduce"]
    assert (curve.bus_bytes_per_s, curve.latency_s) == (pytest.approx(3e11, rel=0.02), pytest.approx(2e-5, rel=0.05))
    assert curve.knots == ()
    assert found.gpu.training["all_reduce_bytes_per_s"] == curve.bus_bytes_per_s
    assert found.gpu.training["all_reduce_latency_s"] == curve.latency_s / 2


def test_a_curve_that_two_numbers_miss_keeps_its_points():
    sizes = [2**k for k in range(12, 31, 2)]
    seconds = [2e-5 + 1.75 * b / 3e11 + (3e-5 if b > 2**17 else 0.0) + (1e-3 if b > 2**25 else 0.0) for b in sizes]
    rows = [{"kind": "all_reduce", "bytes": b, "ranks": 8, "seconds": s} for b, s in zip(sizes, seconds, strict=True)]
    curve = curve_for(applied(collectives=rows).gpu, "all_reduce", 8)
    assert curve is not None
    assert np.allclose(curve_seconds(curve, "all_reduce", np.array(sizes)), seconds, rtol=1e-6)


def test_measured_groups_replace_their_own_size_only():
    preset = evolve(GPU, collectives={"all_reduce": (CollectiveCurve(2, 1e11, 1e-6, "p"), CollectiveCurve(8, 1e11, 1e-6, "p"))})
    rows = [{"kind": "all_reduce", "bytes": 2**k, "ranks": 8, "seconds": 1e-5 + 2**k / 1e11} for k in range(10, 30, 3)]
    curves = applied(preset, collectives=rows).gpu.collectives["all_reduce"]
    assert [(c.ranks, c.source == "p") for c in curves] == [(2, True), (8, False)]


def test_the_network_between_nodes_becomes_a_share_of_the_line_rate():
    """Sixteen ranks on two nodes: the ring uses the NICs of all eight ranks of a node, 50 GB/s each, and gets 80%."""
    rows = [
        {"kind": "all_reduce", "bytes": 2**k, "ranks": 16, "nodes": 2, "seconds": 6e-5 + 2 * 15 / 16 * 2**k / (8 * 50e9 * 0.8)}
        for k in range(12, 31, 2)
    ]
    found = applied(collectives=rows)
    assert found.constants["scale_out_efficiency"][0] == pytest.approx(0.8, rel=0.02)
    assert found.constants["scale_out_latency_s"][0] == pytest.approx(3e-5, rel=0.1)


def test_memory_passes_and_launches():
    copies = [{"op": "copy", "bytes": 2**k, "seconds": 4e-6 + 2**k / 3.4e12} for k in range(24, 33, 2)]
    adam = [{"op": "adam", "bytes": 16 * 10**8, "seconds": 10**8 * 30 / 3.4e12}]
    found = applied(memory=[*copies, *adam], launch=[{"what": "kernel", "seconds": 7e-6}])
    assert found.gpu.training["hbm"] == pytest.approx(0.85, rel=0.03)
    assert found.constants["optimizer_bytes_per_param"][0] == pytest.approx(30, rel=0.05)
    assert found.constants["host_launch_s"][0] == 7e-6


def test_cached_rows_are_left_out_and_said():
    rows = [*gemm_rows(0.6, 0.8, 6e-6), {"dtype": "bf16", "m": 1, "n": 4096, "k": 4096, "seconds": 7e-6}]
    found = applied(gemm=rows)
    assert found.notes == ("1 of 13 rows of gemm.bf16 beat the memory: cached operands",)
    assert found.gpu.gemm["bf16"].compute == pytest.approx(0.6, rel=0.02)


def test_too_few_rows_change_nothing():
    found = applied(gemm=gemm_rows(0.6, 0.8, 6e-6)[:2])
    assert found.gpu.gemm == GPU.gemm
    assert found.notes == ("gemm.bf16 has too few usable rows for a fit (2 of 2)",)


def test_another_gpus_data_and_implausible_data_are_refused():
    with pytest.raises(SpecError, match="was measured on other and cannot speak for toy-gpu"):
        apply_profile(GPU, parse_profile({"gpu": "other", "source": "s", "gemm": gemm_rows(0.6, 0.8, 0.0)}, "profile x"))
    with pytest.raises(SpecError, match=r"gemm\[11\] .* above toy-gpu's dense bf16 peak"):
        applied(gemm=[*gemm_rows(0.6, 0.8, 0.0)[:-1], {"dtype": "bf16", "m": 16384, "n": 4096, "k": 14336, "seconds": 1e-3}])
