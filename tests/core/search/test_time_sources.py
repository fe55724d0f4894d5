"""Time by where its numbers come from, on a preset and on a measured GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autoparallel_core.host import host
from autoparallel_core.ops.ledger import Ledger, note, recording
from autoparallel_core.profiles.apply import apply_profile
from autoparallel_core.profiles.files import parse_profile
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.time_sources import ORIGINS, time_by_source
from autoparallel_core.spec.strategy import parse_strategy
from autoparallel_core.testing.toys import toy_gpu, toy_problem

TRAINING, SERVING = parse_strategy("tp2 pp1 dp4 mbs1 zero1"), parse_strategy("tp2 pp1 dp1")


def gemm_rows(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    for m in sizes:
        for n, k in ((4096, 4096), (16384, 4096), (4096, 16384)):
            seconds = 4e-6 + np.hypot(2 * m * n * k / 0.5e15, 2 * (n * k + m * (n + k)) / 3e12)
            rows.append({"dtype": "bf16", "m": m, "n": n, "k": k, "seconds": float(seconds)})
    return rows


def measured(**tables: Any):
    return apply_profile(toy_gpu(), parse_profile({"gpu": "toy-gpu", "source": "bench", **tables}, "profile")).gpu


def question(mode: str, gpu=None):
    engine = {"training": "fsdp", "inference": "vllm"}[mode]
    return toy_problem(engine, mode, host=host(), gpu=gpu, n_gpus=8 if mode == "training" else 2)


@pytest.mark.parametrize(("mode", "strategy"), [("training", TRAINING), ("inference", SERVING)])
def test_sources_sum_to_the_time_and_a_preset_measures_nothing(mode, strategy):
    problem = question(mode)
    found = time_by_source(problem, strategy, host())
    assert sum(found.values()) == pytest.approx(explain_strategy(problem, strategy, host()).cost.total_s)
    assert set(found) <= set(ORIGINS)
    assert not set(found) & {"measured", "interpolated", "extrapolated"}


@pytest.mark.parametrize(("mode", "strategy"), [("training", TRAINING), ("inference", SERVING)])
def test_measured_matrix_products_account_for_their_time(mode, strategy):
    problem = question(mode, measured(gemm=gemm_rows((1, 64, 1024, 4096, 16384))))
    found = time_by_source(problem, strategy, host())
    plan = explain_strategy(problem, strategy, host())
    assert sum(found.values()) == pytest.approx(plan.cost.total_s)
    ours = sum(found.get(o, 0.0) for o in ("measured", "interpolated", "extrapolated"))
    assert ours >= 0.9 * (plan.cost.seconds["gemm"] + plan.cost.seconds.get("head", 0.0))
    assert found.get("preset", 0.0) + found.get("assumed", 0.0) > 0  # the rest is not measured


def test_shapes_outside_of_what_was_measured_are_extrapolated():
    """Points up to 64 rows say little about training, which multiplies thousands."""
    found = time_by_source(question("training", measured(gemm=gemm_rows((1, 16, 64)))), TRAINING, host())
    assert found["extrapolated"] > 0
    assert "interpolated" not in found


def test_slower_measurements_make_slower_predictions():
    slow = [{**r, "seconds": r["seconds"] * 3} for r in gemm_rows((1, 64, 1024, 4096, 16384))]
    for mode, strategy in (("training", TRAINING), ("inference", SERVING)):
        plain = explain_strategy(question(mode), strategy, host()).cost.seconds["gemm"]
        changed = explain_strategy(question(mode, measured(gemm=slow)), strategy, host()).cost.seconds["gemm"]
        assert changed > 1.5 * plain


def test_the_ledger_keeps_nothing_unless_asked():
    note("gemm", 1.0, 0)
    with recording() as ledger:
        note("gemm", np.array([1.0, 3.0]), np.array([0, 2]))
    note("gemm", 1.0, 0)
    assert ledger.shares("gemm") == {"measured": 0.25, "extrapolated": 0.75}
    assert Ledger().shares("gemm") == {}
