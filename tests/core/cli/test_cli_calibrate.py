"""``calibrate`` writes what ``--calibration`` reads, and answers name it."""

from __future__ import annotations

import json

import pytest

RECORD = {
    "id": "mine", "mode": "training", "name": "small", "engine": "fsdp", "engine_version": "2.7",
    "cluster": {"gpu": "H100", "n_gpus": 8, "gpus_per_node": 8},
    "workload": {"seq_len": 4096, "global_batch_size": 64, "precision": "bf16"},
    "strategy": {"tp": 1, "pp": 1, "cp": 1, "dp": 8, "zero_stage": 3, "micro_batch_size": 1, "recompute": "none"},
}  # fmt: skip
QUESTION = (
    "--engine", "fsdp", "--engine-version", "2.7", "--gpu-type", "H100", "--n-gpus", "8", "--batch-size", "64", "--max-length",
    "4096", "--json", "--top", "1",
)  # fmt: skip


@pytest.fixture
def small(model):
    return ("--model-path", model())


@pytest.fixture
def runs(tmp_path, model):
    def write(*steps: float):
        path = tmp_path / "runs.jsonl"
        rows = [{**RECORD, "id": f"r{i}", "model": model(), "measured": {"step_time_s": s}} for i, s in enumerate(steps)]
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    return write


def test_calibrate_then_ask(cli, small, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    predicted = cli("validate", str(runs(1.0)), "--json").json["runs"][0]["predicted"]["step_time_s"]
    path, out = runs(*(predicted * f for f in (1.29, 1.30, 1.31))), tmp_path / "mine.json"
    ran = cli("calibrate", str(path), "--output", str(out))
    assert ran.code == 0, ran.err
    assert "3 runs: median error 23.1% as predicted" in ran.words
    assert f"use it with --calibration {out}" in ran.words
    document = cli("calibrate", str(path), "--output", str(out), "--json").json
    assert document["stacks"][0]["records"] == 3
    before, after = cli(*small, *QUESTION).json, cli(*small, *QUESTION, "--calibration", str(out)).json
    ratio = before["strategies"][0]["tokens_per_s_per_gpu"] / after["strategies"][0]["tokens_per_s_per_gpu"]
    assert 1.15 < ratio < 1.35
    assert f"calibrated on 3 runs of this stack ({out})" in after["assumptions"]
    validated = cli("validate", str(path), "--json", "--calibration", str(out))
    assert abs(validated.json["runs"][1]["predicted"]["step_time_s"] / (predicted * 1.3) - 1) < 0.08
    assert "calibrated on 3 runs" in validated.err
    elsewhere = cli(*small, *QUESTION, "--precision", "fp8", "--calibration", str(out)).json
    assert any("is about other stacks" in a for a in elsewhere["assumptions"])


def test_what_cannot_be_learnt_from_is_refused(cli, runs, small, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert "the file is empty" in cli("calibrate", str(empty), "--output", str(tmp_path / "c.json")).err
    far = cli("calibrate", str(runs(1e9)), "--output", str(tmp_path / "c.json"))
    assert (far.code, "more than four times off" in far.err) == (2, True)
    assert not (tmp_path / "c.json").exists()
    missing = cli(*small, *QUESTION, "--calibration", str(tmp_path / "no.json"))
    assert (missing.code, "no such file" in missing.err) == (2, True)
