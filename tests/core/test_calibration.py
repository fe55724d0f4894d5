"""Calibration: what a fit learns from few records, what it may not do, and that every figure follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.calibrate.files import CalibrationFile, Lesson, read_calibration, write_calibration
from autoparallel_core.calibrate.fit import (
    LIMITS,
    NOISE,
    PRIOR,
    Observation,
    error_of,
    fit,
    left_out_errors,
    oddities,
    predicted_log,
)
from autoparallel_core.calibrate.learn import learn, learn_one
from autoparallel_core.calibrate.observe import observe
from autoparallel_core.calibrate.stacks import Stack
from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.records import parse_record
from autoparallel_core.runs.validate import predict_records
from autoparallel_core.search.calibrated import GROUPS, group_of, ideal, scaled_seconds
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.spec.calibration import Calibration
from autoparallel_core.testing.toys import toy_batch, toy_problem

STACK = Stack("training", "fsdp", "2.7", "gpu", "model", "shape", "bf16")
HALVES = {"kernels": 0.5, "collectives": 0.5}


def seen(step: float, shares: dict[str, float] | None = None, name: str = "r") -> Observation:
    return Observation(name, shares or {"kernels": 1.0}, step)


def test_nothing_learnt_changes_nothing():
    assert fit([]) == Calibration()
    assert fit([seen(0.0), seen(0.0, HALVES)]) == Calibration()


def test_one_record_moves_as_far_as_its_weight_says():
    """All in one group: scale and kernels share log(1.2) in proportion to their variances, less what noise may explain."""
    factors = fit([seen(np.log(1.2))])
    prior = PRIOR["scale"] ** 2 + PRIOR["kernels"] ** 2
    learnt = np.log(1.2) * prior / (prior + NOISE**2)
    assert np.log(factors.scale * factors.kernels) == pytest.approx(learnt, rel=1e-6)
    assert np.log(factors.kernels) / np.log(factors.scale) == pytest.approx((PRIOR["kernels"] / PRIOR["scale"]) ** 2, rel=1e-6)
    assert (factors.collectives, factors.host, factors.prefill, factors.first_token) == (1, 1, 1, 1)


def test_many_records_tell_slow_collectives_from_slow_kernels():
    shares = np.linspace(0.05, 0.9, 40)
    runs = [seen(float(np.log(s * 1.8 + (1 - s))), {"collectives": s, "kernels": 1 - s}) for s in shares]
    factors = fit(runs)
    assert factors.collectives * factors.scale == pytest.approx(1.8, rel=0.08)
    assert factors.kernels * factors.scale == pytest.approx(1.0, rel=0.05)
    assert np.max(error_of(runs, factors)) < 0.05


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0, 1)), min_size=1, max_size=6))
def test_factors_stay_within_limits_and_records_never_get_worse_together(points):
    """The most probable factors explain the records at least as well as no factors at all (in squared logarithms)."""
    runs = [seen(step, {"kernels": share, "host": 1 - share}) for step, share in points]
    factors = fit(runs)
    for name, (low, high) in LIMITS.items():
        assert low - 1e-9 <= getattr(factors, name) <= high + 1e-9
    if all(abs(s) < 0.5 for s, _ in points):
        before, after = (sum((o.step - (predicted_log(o, f) if f else 0.0)) ** 2 for o in runs) for f in (None, factors))
        assert after <= before + 1e-9


def test_the_first_token_has_a_factor_of_its_own():
    runs = [Observation(str(i), {"kernels": 1.0}, 0.0, float(np.log(1.5))) for i in range(20)]
    factors = fit(runs)
    assert factors.first_token == pytest.approx(1.5, rel=0.05)
    assert factors.kernels == factors.scale == 1


def test_left_out_errors_are_of_fits_that_have_not_seen_the_record():
    runs = [seen(0.2, name="a"), seen(0.2, name="b"), seen(0.2, name="c")]
    expected = error_of([runs[0]], fit(runs[1:]))[0]
    assert left_out_errors(runs) == pytest.approx([expected] * 3)


def test_records_without_a_common_bias_are_not_used():
    steps = [0.6, -0.6, 0.6, -0.6, 0.6, -0.6]
    shares = [{"kernels": 1 - s, "host": s} for s in (0.1, 0.9, 0.2, 0.8, 0.9, 0.1)]
    lesson = learn_one(STACK, [seen(x, s) for x, s in zip(steps, shares, strict=True)])
    assert lesson.error_left_out is not None
    assert lesson.used == (lesson.error_left_out <= lesson.error_before + 0.005)
    good = learn_one(STACK, [seen(0.3), seen(0.28), seen(0.33), seen(0.3)])
    assert good.used
    assert good.error_left_out < good.error_before


def test_unbelievable_factors_are_called_so():
    assert oddities(Calibration()) == ()
    assert oddities(Calibration(scale=1.5)) == ("scale of 1.50 is far from 1",)
    assert oddities(Calibration(host=LIMITS["host"][1])) == ("host is at its limit of 5.00",)


# -- laying factors on figures ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["training", "inference"])
def question(request):
    engine = {"training": "fsdp", "inference": "vllm"}[request.param]
    return toy_problem(engine, request.param, host=host()), toy_batch(request.param)


def test_every_cause_of_time_has_a_group(question):
    problem, batch = question
    known = {c for causes in GROUPS.values() for c in causes} | {"bubble", "straggler"}
    assert set(evaluate(problem, batch, host()).seconds) <= known


def test_factors_of_one_change_nothing(question):
    problem, batch = question
    plain, same = (evaluate(evolve(problem, calibration=c), batch, host()) for c in (None, Calibration()))
    assert np.allclose(plain.total_s, same.total_s, rtol=1e-9)
    assert np.allclose(plain.tokens_per_s_per_gpu, same.tokens_per_s_per_gpu, rtol=1e-9)


def test_the_common_scale_scales_everything(question):
    problem, batch = question
    plain, slow = (evaluate(evolve(problem, calibration=c), batch, host()) for c in (None, Calibration(scale=1.25)))
    assert np.allclose(slow.total_s, 1.25 * plain.total_s, rtol=1e-9)
    assert np.allclose(np.sum(list(slow.seconds.values()), axis=0), slow.total_s)
    assert np.all(slow.tokens_per_s_per_gpu <= plain.tokens_per_s_per_gpu)
    for name in ("reserved_bytes", "fits"):
        assert np.array_equal(getattr(plain, name), getattr(slow, name))


def test_one_group_moves_only_its_causes(question):
    problem, batch = question
    plain = evaluate(problem, batch, host())
    moved = evaluate(evolve(problem, calibration=Calibration(collectives=2.0)), batch, host())
    for cause, seconds in plain.seconds.items():
        if cause in ("bubble", "straggler"):
            continue
        factor = 2.0 if group_of(cause) == "collectives" else 1.0
        assert np.allclose(moved.seconds[cause], factor * seconds), cause


def test_no_kernel_beats_the_hardware(question):
    problem, batch = question
    least = evaluate(ideal(problem), batch, host())
    fast = evaluate(evolve(problem, calibration=Calibration(kernels=0.5, scale=0.5)), batch, host())
    kernels = [c for c in fast.seconds if group_of(c) == "kernels"]
    bound = np.sum([least.seconds[c] for c in kernels], axis=0)
    assert np.all(np.sum([fast.seconds[c] for c in kernels], axis=0) >= bound * (1 - 1e-9))
    assert np.any(bound > 0.25 * np.sum([evaluate(problem, batch, host()).seconds[c] for c in kernels], axis=0))


def test_bubbles_follow_what_they_wait_for():
    seconds = {"gemm": np.array([2.0]), "tp_comm": np.array([2.0]), "bubble": np.array([1.0])}
    assert scaled_seconds(seconds, Calibration(kernels=2.0))["bubble"] == pytest.approx(1.5)


def test_the_explained_plan_follows(question):
    problem, batch = question
    one = evolve(problem, calibration=Calibration(scale=1.5))
    plan, calibrated = (explain_strategy(p, batch[0], host()) for p in (problem, one))
    assert calibrated.cost.total_s == pytest.approx(1.5 * plan.cost.total_s)


# -- files and records --------------------------------------------------------------------------------------------------


def lesson(**changes: Any) -> Lesson:
    return evolve(Lesson(STACK, Calibration(kernels=1.1), 3, 0.1, 0.04, 0.05), **changes)


def test_a_file_reads_back(tmp_path: Path):
    path = tmp_path / "deep" / "c.json"
    found = CalibrationFile((lesson(), lesson(used=False, oddities=("x",), error_left_out=None)), "runs.jsonl", "2026-05-03")
    write_calibration(found, path)
    assert read_calibration(path) == found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.update(kind="x"), "is no calibration file"),
        (lambda b: b.update(schema_version=2), "schema_version is 2"),
        (lambda b: b["stacks"][0].update(recordss=1), "recordss"),
        (lambda b: b["stacks"][0]["factors"].update(kernels=9), r"stacks\[0\]\.factors\.kernels is 9; plausible are 0\.5 to 3"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, change, says):
    path = tmp_path / "c.json"
    write_calibration(CalibrationFile((lesson(),)), path)
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(SpecError, match=says):
        read_calibration(path)


def test_missing_and_broken_files(tmp_path: Path):
    with pytest.raises(SpecError, match="no such file"):
        read_calibration(tmp_path / "missing.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(SpecError, match="is not valid JSON"):
        read_calibration(tmp_path / "x.json")


def test_a_lesson_holds_for_its_own_stack_only():
    problem = toy_problem("fsdp", "training", host=host())
    own = lesson(stack=evolve(Stack.of(problem), model="another name of the same model"))
    for other in (
        evolve(own.stack, version="9.9"), evolve(own.stack, gpu="x"), evolve(own.stack, shape="x"),
        evolve(own.stack, precision="fp8"), evolve(own.stack, engine="x"), evolve(own.stack, mode="inference"),
    ):  # fmt: skip
        found = CalibrationFile((lesson(stack=other),), path="c.json")
        assert found.applied_to(problem).calibration is None
        assert "is about other stacks" in found.says(problem)
    calibrated = CalibrationFile((lesson(stack=evolve(own.stack, gpu="x")), own), path="c.json").applied_to(problem)
    assert calibrated.calibration is not None
    assert calibrated.calibration.kernels == 1.1
    assert calibrated.calibration.source == "calibrated on 3 runs of this stack (c.json)"
    assert CalibrationFile((evolve(own, used=False),)).applied_to(problem) is problem


CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


def run(name: str, tp: int, **measured: float):
    return parse_record({
        "id": name, "mode": "training", "model": CONFIG, "name": "small", "engine": "fsdp", "engine_version": "2.7",
        "cluster": {"gpu": "H100", "n_gpus": 8, "gpus_per_node": 8},
        "workload": {"seq_len": 4096, "global_batch_size": 64, "precision": "bf16"},
        "strategy": {"tp": tp, "pp": 1, "cp": 1, "dp": 8 // tp, "zero_stage": 3, "micro_batch_size": 1, "recompute": "none"},
        "measured": measured,
    })  # fmt: skip


def test_records_become_observations_and_calibrated_predictions_come_closer():
    strategies = (1, 2, 4)
    plain = [p.predicted["step_time_s"] for p in predict_records([run(f"r{t}", t, step_time_s=1.0) for t in strategies], host())]
    records = [run(f"r{t}", t, step_time_s=1.2 * s) for t, s in zip(strategies, plain, strict=True)]
    observed = observe(records, host())
    ((stack, observations),) = observed.by_stack.items()
    assert (stack.engine, stack.version, stack.gpu, stack.precision) == ("fsdp", "2.7", "H100-SXM-80GB", "bf16")
    assert [o.step for o in observations] == pytest.approx([np.log(1.2)] * 3)
    assert all(0.99 < sum(o.shares.values()) <= 1 + 1e-9 for o in observations)
    found = CalibrationFile(learn(observed.by_stack))
    after = predict_records(records, host(), refine=found.applied_to)
    for p, s in zip(after, plain, strict=True):
        assert abs(p.predicted["step_time_s"] / (1.2 * s) - 1) < 0.05


def test_throughput_and_silence():
    (observations,) = observe([run("r", 1, tokens_per_s_per_gpu=40_000.0)], host()).by_stack.values()
    assert observations[0].step is not None
    silent = observe([run("r", 1), run("far", 1, step_time_s=1e6)], host())
    assert not silent.by_stack
    assert [name for name, _ in silent.unused] == ["r", "far"]
    assert "more than four times off" in silent.unused[1][1]
