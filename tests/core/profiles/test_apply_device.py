"""Profiles of a device that only they describe: what was measured is what training is priced with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve

from autoparallel_core.cluster import build_cluster
from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.host import host
from autoparallel_core.measured import Measured, measured_gpu
from autoparallel_core.ops.ledger import recording
from autoparallel_core.problem import make_problem
from autoparallel_core.profiles.apply import apply_profile
from autoparallel_core.profiles.files import Profile, parse_profile
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.cluster import Gpu
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
from autoparallel_core.spec.workload import TrainingWorkload
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu

DEVICE = evolve(
    toy_gpu(), name="cpu-of-a-test", aliases=(), vendor="cpu", training={}, collectives={}, scale_up_domain=4, gpus_per_node=4
)
LENGTHS = (64, 128, 256)
SECONDS = {"forward": {64: 2e-3, 128: 3e-3, 256: 5e-3}, "backward": {64: 16e-3, 128: 18e-3, 256: 15e-3}}
"""As a processor's kernels behave: the backward of short sequences takes as long as that of long ones."""


def attention() -> list[dict[str, Any]]:
    return [
        {"phase": phase, "dtype": "bf16", "batch": 2048 // s, "heads": 8, "kv_heads": 8, "head_dim": 32, "q_len": s, "kv_len": s,
         "seconds": SECONDS[phase][s]}
        for phase in SECONDS for s in LENGTHS
    ]  # fmt: skip


def line(kind: str, ranks: int, latency_s: float, bytes_per_s: float, halves: float = 1.0) -> list[dict[str, Any]]:
    """Messages of a group whose collectives take latency and bus bandwidth."""
    return [
        {"kind": kind, "bytes": 2**k, "ranks": ranks, "seconds": halves * (latency_s + (ranks - 1) / ranks * 2**k / bytes_per_s)}
        for k in range(10, 24, 2)
    ]


COLLECTIVES = [
    *(row for kind in ("all_gather", "reduce_scatter") for row in line(kind, 2, 3e-4, 1e9)),
    *(row for kind in ("all_gather", "reduce_scatter") for row in line(kind, 4, 2e-3, 5e8)),
    *line("all_reduce", 2, 2e-4, 2e9, 2.0),
]
TABLES: dict[str, Any] = {
    "gemm": [{"dtype": "bf16", "m": m, "n": 512, "k": 512, "seconds": 2 * m * 512**2 / 2e11} for m in (256, 512, 1024, 4096)],
    "memory": [{"op": "copy", "bytes": 2**k, "seconds": 2**k / 1e10} for k in (21, 23, 25)],
    "attention": attention(),
    "collectives": COLLECTIVES,
    "p2p": [{"bytes": 2**k, "seconds": 1e-4 + 2**k / 1e9} for k in (10, 16, 22)],
    "launch": [
        {"what": "kernel", "seconds": 3e-6},
        {"what": "layer", "seconds": 3e-4},
        {"what": "sharded_layer", "seconds": 4e-3},
    ],
}


def profile(gpu: Gpu | None = None) -> Profile:
    found = parse_profile({"gpu": (gpu or DEVICE).name, "source": "bench", **TABLES}, "profile x")
    return evolve(found, device=None if gpu else DEVICE)


def question(n: int, **software: Any) -> Problem:
    applied = apply_profile(DEVICE, profile())
    constants = {k: v for k, (v, _) in applied.constants.items()}
    from autoparallel_core.cost.constants import core_constants
    from autoparallel_core.spec.problem import Constant

    known = core_constants()
    data = Measured(applied.gpu, {k: Constant(v, known[k].meaning, "test", "measured") for k, v in constants.items()})
    work = TrainingWorkload(seq_len=128, global_batch_size=32)
    arch = toy_dense_arch(2)
    problem = make_problem(
        arch, build_cluster(data.gpu, n), work, engine="torchtitan", host=host(),
        software={"attention_kernel": "flash2", "elementwise": "eager", **software},
    )  # fmt: skip
    return data.applied_to(problem)


@pytest.mark.parametrize("length", LENGTHS)
def test_measured_attention_is_exact(length: int):
    hw = TrainingHardware.of(question(1))
    heads = np.array([8.0 * (2048 // length)])
    forward, backward = hw.attention_s(heads * length**2 / 2, 32, 32, length, heads * length**2)
    assert forward[0] == pytest.approx(SECONDS["forward"][length], rel=1e-6)
    assert backward[0] == pytest.approx(SECONDS["backward"][length], rel=1e-6)


def test_attention_says_how_it_was_come_by():
    hw = TrainingHardware.of(question(1))
    heads = np.array([64.0])
    with recording() as ledger:
        hw.attention_s(heads * 1024**2 / 2, 32, 32, 1024, heads * 1024**2)
    assert ledger.shares("attention") == {"extrapolated": pytest.approx(1.0)}


def test_collectives_go_by_the_size_of_their_group():
    net = TrainingHardware.of(question(4)).network
    sizes, full = np.array([2.0, 4.0]), np.full(2, 2.0**22)
    assert net.gather(full, sizes, 1.0) == pytest.approx([3e-4 + 2**21 / 1e9, 2e-3 + 0.75 * 2**22 / 5e8], rel=0.02)
    assert net.all_reduce(full, sizes, 1.0)[0] == pytest.approx(2 * (2e-4 + 2**21 / 2e9), rel=0.02)


def test_a_presets_in_situ_constants_stay():
    gpu = toy_gpu()
    found = apply_profile(gpu, profile(gpu)).gpu
    assert not {k for k in found.tables if k.startswith(("attention_training", "training."))}


def test_nothing_is_hidden_on_a_processor():
    """A micro-batch over two tensor-parallel ranks: the layers' dispatch, and all of their messages, whatever overlaps."""
    strategies = StrategyBatch.of([parse_strategy(t) for t in ("tp2 mbs32", "dp2 mbs16", "dp2 zero3 mbs16")])
    seconds = evaluate(question(2, dp_overlap=True), strategies, host()).seconds
    tp, dp, sharded = range(3)
    assert seconds["host"][tp] - seconds["host"][dp] == pytest.approx(2.4 * 3 * 4e-3)  # two layers and the ends, three passes
    arch = toy_dense_arch(2)
    one = 3e-4 + 0.5 * 32 * 128 * arch.hidden_size * 2.0 / 1e9
    assert seconds["tp_comm"][tp] >= 2 * 8 * one * 0.98  # two layers: a gather and a scatter per block, forward and backward
    assert seconds["fsdp_comm"][sharded] > seconds["dp_comm"][dp] > 0
    compiled = evaluate(question(2, elementwise="compiled"), strategies, host()).seconds
    assert compiled["host"][tp] == pytest.approx(compiled["host"][dp])


def test_no_measurement_leaves_a_preset_alone():
    gpu = toy_gpu()
    assert measured_gpu(gpu, host(), presets_only=True).gpu is gpu
