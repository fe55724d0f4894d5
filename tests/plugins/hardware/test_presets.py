"""The built-in GPU presets against published figures, and their fitted tables against known measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autoparallel_core.cluster import build_cluster
from autoparallel_core.errors import UnknownPlugin
from autoparallel_core.host import Host
from autoparallel_core.ops.curves import curve_for, curve_seconds
from autoparallel_core.testing.hardware import gpu_complaints

REPOSITORY = Path(__file__).resolve().parents[3]
SHARED = REPOSITORY.parent / "shared"
GIB = 2**30


@pytest.fixture(scope="module")
def host() -> Host:
    return Host()


@pytest.fixture(scope="module")
def gpus(host):
    return host.gpus()


# name: dense bf16 or fp16 TFLOP/s, fp8, fp4, page GB, memory GB/s, link GB/s per direction, domain, per node, NIC GB/s
PUBLISHED = {
    "H100": (989.4, 1978.9, None, 80, 3350, 450, 8, 8, 50),
    "H100-PCIe": (756.5, 1513, None, 80, 2039, 64, 1, 8, None),
    "H100-NVL": (835.5, 1671, None, 94, 3938, 300, 2, 8, None),
    "H200": (989.4, 1978.9, None, 141, 4800, 450, 8, 8, 50),
    "H800": (989.4, 1978.9, None, 80, 3350, 200, 8, 8, 50),
    "H20": (148, 296, None, 96, 4000, 450, 8, 8, 50),
    "A100": (312, None, None, 80, 2039, 300, 8, 8, 25),
    "A100-40GB": (312, None, None, 40, 1555, 300, 8, 8, 25),
    "A100-PCIe": (312, None, None, 80, 1935, 32, 1, 8, None),
    "A800": (312, None, None, 80, 2039, 200, 8, 8, 25),
    "B200": (2250, 4500, 9000, 180, 8000, 900, 8, 8, 50),
    "B300": (2250, 4500, 13500, 288, 8000, 900, 8, 8, 100),
    "GB200": (2500, 5000, 10000, 186, 8000, 900, 72, 4, 50),
    "GB300": (2500, 5000, 15000, 288, 8000, 900, 72, 4, 100),
    "L40S": (362.05, 733, None, 48, 864, 32, 1, 8, None),
    "RTX-PRO-6000": (503.8, 1007.6, 2015.2, 96, 1597, 64, 1, 8, None),
    "RTX-4090": (165.2, 330.3, None, 24, 1008, 32, 1, 8, None),
    "RTX-3090": (71, None, None, 24, 936, 32, 1, 8, None),
    "V100-16GB": (125, None, None, 16, 900, 150, 8, 8, 6.25),
    "V100": (125, None, None, 32, 900, 150, 8, 8, None),
    "T4": (65, None, None, 16, 320, 16, 1, 8, None),
    "L4": (121, 242.5, None, 24, 300, 32, 1, 8, None),
    "A10G": (70, None, None, 24, 600, 32, 1, 8, None),
    "MI300X": (1307.4, 2614.9, None, 192, 5300, 448, 8, 8, 50),
    "MI325X": (1307.4, 2614.9, None, 256, 6000, 448, 8, 8, 50),
    "MI355X": (2300, 4600, 9200, 288, 8000, 537.6, 8, 8, 50),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(host, name):
    half, fp8, fp4, page, memory, link, domain, per_node, nic = PUBLISHED[name]
    g = host.gpu(name)
    assert g.peak_flops.get("bf16", g.peak_flops["fp16"]) == pytest.approx(half * 1e12)
    assert g.peak_flops.get("fp8") == (None if fp8 is None else pytest.approx(fp8 * 1e12))
    assert g.peak_flops.get("fp4") == (None if fp4 is None else pytest.approx(fp4 * 1e12))
    assert g.marketing_memory_bytes == page * 1e9
    assert g.hbm_bytes_per_s == memory * 1e9
    assert g.scale_up_bytes_per_s == pytest.approx(link * 1e9)
    assert (g.scale_up_domain, g.gpus_per_node) == (domain, per_node)
    assert nic is None or g.nic_bytes_per_s == nic * 1e9


@pytest.mark.parametrize(
    ("name", "gib"),
    [("H100", 79.19), ("H20-3e", 139.72), ("GB300", 276.62), ("RTX-3090", 23.58), ("T4", 14.56), ("A10G", 22.07),
     ("B200", 178.35), ("GB200", 184.31), ("MI355X", 287.98)],
)  # fmt: skip
def test_memory_is_what_a_process_is_shown(host, name, gib):
    """Start-up logs of serving engines and allocator messages print these totals."""
    assert host.gpu(name).memory_bytes / GIB == pytest.approx(gib, abs=0.005)


def test_every_preset_is_plausible_and_sourced(gpus):
    assert len(gpus) >= 28
    assert [c for g in gpus.values() for c in gpu_complaints(g)] == []


def test_bf16_is_no_dtype_of_older_tensor_cores(host):
    assert "bf16" not in host.gpu("V100").peak_flops
    assert "fp16" in host.gpu("V100").gemm
    assert "bf16" not in host.gpu("V100").gemm


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100", "H100-SXM-80GB"),
        ("H100-SXM", "H100-SXM-80GB"),
        ("h100_sxm", "H100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("h200", "H200-SXM-141GB"),
        ("A100", "A100-SXM-80GB"),
        ("b200", "B200-SXM-180GB"),
        ("rtx 4090", "RTX-4090-24GB"),
        ("mi300x", "MI300X-192GB"),
        # as public run records spell them
        ("B300-SXM", "B300-SXM-288GB"),
        ("B200-or-GB200-184GiB", "GB200"),
        ("H100-96GB-HBM2e-500W", "H100-96GB-HBM2e-500W"),
        ("A100-PCIe-80GB", "A100-PCIe-80GB"),
        ("RTX-PRO-6000-96GB", "RTX-PRO-6000-96GB"),
        ("H20-96GB", "H20-SXM-96GB"),
        ("V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("L40S-48GB", "L40S-48GB"),
    ],
)
def test_names_as_people_write_them(host, written, name):
    assert host.gpu(written).name == name


def test_an_unknown_gpu_is_an_error_with_near_names(host):
    with pytest.raises(UnknownPlugin, match=r"unknown GPU 'H101'.*H10"):
        host.gpu("H101")


@pytest.mark.skipif(not (SHARED / "validation").is_dir(), reason="run records are not part of a clone")
def test_every_gpu_of_the_run_records_is_known(host):
    names = {
        json.loads(line)["cluster"].get("gpu")
        for file in (SHARED / "validation").glob("*.jsonl")
        for line in file.read_text().splitlines()
    }
    assert len(names) > 15
    for name in names - {None}:
        host.gpu(name)


TRAINING_KEYS = {"gemm_bf16", "attention_fused", "attention_flash2", "all_reduce_bytes_per_s", "all_reduce_latency_s", "hbm"}


def test_training_constants_are_complete(gpus):
    for g in gpus.values():
        assert g.training.keys() >= TRAINING_KEYS, g.name
        for dtype in ("fp8", "fp4"):
            assert (f"gemm_{dtype}" in g.training) == (dtype in g.peak_flops), g.name
        assert g.training["all_reduce_bytes_per_s"] <= g.scale_up_bytes_per_s, g.name


def test_in_situ_products_stay_below_the_best_measured_ones(host):
    """Best matmuls of the public tables, TFLOP/s: no training constant may promise more."""
    best = {"A100": 294, "H100": 868, "H200": 848, "B200": 1855, "B300": 2018, "GB200": 1968, "GB300": 2276, "MI355X": 1565}
    for name, tflops in best.items():
        g = host.gpu(name)
        assert g.training["gemm_bf16"] * g.peak("bf16") <= tflops * 1e12, name
    for name, tflops in {"B200": 4844, "GB200": 5337, "B300": 5793, "GB300": 6406}.items():
        g = host.gpu(name)
        assert g.training["gemm_fp4"] * g.peak("fp4") <= tflops * 1e12 * 1.01, name


def test_every_kernel_table_is_filled(gpus):
    for g in gpus.values():
        half = "bf16" if "bf16" in g.peak_flops else "fp16"
        assert {half, *(d for d in ("fp8", "fp4") if d in g.peak_flops)} <= g.gemm.keys(), g.name
        assert {half, *(d for d in ("fp8", "fp4") if d in g.peak_flops)} <= g.expert_gemm.keys(), g.name
        assert {"prefill", "decode", "mla_prefill", "mla_decode"} <= g.attention.keys(), g.name
        assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"} <= g.collectives.keys(), g.name
        assert {"gated_delta_decode_s", "sparse_indexer_decode_s"} <= g.serving.keys(), g.name


@pytest.mark.parametrize(
    ("name", "dtype", "compute", "memory"),
    [
        ("A100", "bf16", (0.79, 0.85), (0.73, 0.82)),
        ("H100", "bf16", (0.73, 0.82), (0.81, 0.88)),
        ("H200", "bf16", (0.73, 0.80), (0.81, 0.88)),
        ("H100", "fp8", (0.60, 0.68), (0.82, 0.93)),
        ("B200", "bf16", (0.66, 0.72), (0.73, 0.80)),
        ("B200", "fp8", (0.51, 0.57), (0.72, 0.79)),
        ("B200", "fp4", (0.43, 0.53), (0.69, 0.80)),
        ("GB300", "bf16", (0.68, 0.85), (0.73, 0.83)),
        ("L40S", "bf16", (0.54, 0.63), (0.77, 0.88)),
    ],
)
def test_matrix_products_agree_with_independent_fits(host, name, dtype, compute, memory):
    """Ranges that an independent fit of the same form over single engines gave."""
    e = host.gpu(name).gemm[dtype]
    assert compute[0] <= e.compute <= compute[1]
    assert memory[0] <= e.memory <= memory[1]
    assert e.origin == "measured"


def test_all_reduces_of_decode_messages(host):
    """Published points of the engines' all-reduce on Hopper: 128 KiB, 1, 8 and 64 MiB over 8 and 2 GPUs, in µs."""
    size = np.array([2**17, 2**20, 2**23, 2**26])
    for ranks, micros in ((8, [8, 17.5, 79, 323]), (2, [4.9, 8.4, 45, 255])):
        curve = curve_for(host.gpu("H100"), "all_reduce_custom", ranks)
        assert curve_seconds(curve, "all_reduce_custom", size) * 1e6 == pytest.approx(np.array(micros), rel=0.2)


def test_large_all_reduces_reach_the_published_bus_bandwidth(host):
    """NCCL over 8 GPUs, 16 bit, GB/s at its best: A100 222, H100 445, H200 461, B200 704, L40S 2.1."""
    for name, bus in {"A100": 222, "H100": 445, "H200": 461, "B200": 704, "L40S": 2.1}.items():
        curve = curve_for(host.gpu(name), "all_reduce", 8)
        reached = 1.75 * 2**30 / curve_seconds(curve, "all_reduce", 2**30) / 1e9
        assert reached == pytest.approx(bus, rel=0.32), name
        assert reached <= bus * 1.02, name


def test_figures_of_gpus_without_tables_say_whose_they_are(host):
    g = host.gpu("A800")
    assert {e.origin for e in g.gemm.values()} == {"assumed"}
    assert all(e.source.startswith("assumed as A100-SXM-80GB") for e in g.gemm.values())
    ratio = g.collectives["all_reduce"][-1].bus_bytes_per_s / host.gpu("A100").collectives["all_reduce"][-1].bus_bytes_per_s
    assert ratio == pytest.approx(200 / 300)


def test_clusters_of_presets(host):
    c = build_cluster(host.gpu("GB200"), 256)
    assert [(t.name, t.ranks) for t in c.tiers] == [("scale-up", 64), ("scale-out", 256)]
    c = build_cluster(host.gpu("H100"), 16384)
    assert [(t.ranks, t.bytes_per_s) for t in c.tiers] == [(8, 450e9), (16384, 50e9)]
    assert [t.name for t in build_cluster(host.gpu("L40S"), 16).tiers] == ["node", "scale-out"]


def test_presets_load_without_numpy():
    code = "import autoparallel_nvidia, sys; autoparallel_nvidia.gpus(); assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not (SHARED / "ops").is_dir(), reason="operator tables are not part of a clone")
def test_the_committed_fits_are_what_the_script_derives(tmp_path):
    pytest.importorskip("scipy")
    code = (
        "import sys, pathlib; sys.path.insert(0, 'benchmarks')\n"
        "from derive_efficiency import derive, to_toml; from operator_fits import Preset; from operator_tables import Tables\n"
        "p = Preset.read(pathlib.Path('plugins/hardware/autoparallel_nvidia/data/l40s_48gb.toml'))\n"
        f"print(to_toml(derive(p, Tables(pathlib.Path({str(SHARED / 'ops')!r})), {{p.operator_name: p}})), end='')"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    assert out == (REPOSITORY / "plugins/hardware/autoparallel_nvidia/data/measured/l40s_48gb.toml").read_text()
