from __future__ import annotations

import json
import re

import pytest
from report_builders import PARAMETERS, problem, serving_plan, training_plan

from autoparallel_core.report.document import dumps
from autoparallel_core.report.explain import change_sentence, explanation_document, limits, print_explanation, source_rows
from autoparallel_core.search.neighbours import Neighbour
from autoparallel_core.spec.strategy import parse_strategy


def change(ratio: float = 0.94, *, fits: bool = True, over: float = 0.0) -> Neighbour:
    return Neighbour(
        "tp 8→4, dp 2→4", parse_strategy("tp4 pp4 dp4 mbs1"), ratio, {"tp_comm": -0.81, "bubble": 0.2}, 9.1e9, fits, over
    )


def test_a_change_says_what_it_saves_costs_and_needs():
    assert change_sentence(change(1.064), 2.0) == (
        "tp 8→4, dp 2→4: +6.4% tokens/s: less TP collectives (−810 ms), more pipeline bubble (+200 ms); +9.1 GB of memory, fits"
    )
    assert change_sentence(change(fits=False, over=3e9), 2.0).endswith(
        "; +9.1 GB of memory, does not fit: 3.0 GB too much per GPU"
    )


@pytest.mark.parametrize("width", [60, 80, 140])
def test_an_explanation_adds_up(console_at, width):
    console, out = console_at(width)
    print_explanation(console, problem(), PARAMETERS, training_plan(), [change(1.2), change(0.9)], sources=source_rows(problem()))
    text = out.getvalue()
    rows = dict(re.findall(r"^(GEMM|TP collectives|pipeline bubble|sum) +([\d.]+)", text, re.MULTILINE))
    assert {k: float(v) for k, v in rows.items()} == {"GEMM": 1.5, "TP collectives": 0.375, "pipeline bubble": 0.125, "sum": 2.0}
    assert "75.0%" in text
    words = " ".join(text.split())
    for said in (
        "stage 0 60.0",
        "stage 3 34.0",
        "Stage 0 decides: 50.0 GB allocated, 60.0 GB with the allocator's slack, context and communicators",
        "Stages with the same layers are shown once",
        "an MFU of 45.0%",
        "time goes first to GEMM (75.0%), then TP collectives (18.8%)",
        "memory of stage 0 is 75.0% full, mostly activations (40.0 GB) and weights (10.0 GB): fits",
        "Helps most: tp 8→4, dp 2→4: +20.0% tokens/s",
        "bubble_share = 0.5 [fitted] share (a paper)",
    ):
        assert said in words
    assert "serving_step_s" not in text
    assert max(map(len, text.splitlines())) <= width


def test_a_slower_neighbour_does_not_help(console_at):
    console, out = console_at(80)
    print_explanation(console, problem(), PARAMETERS, training_plan(), [change(0.9), change(1.3, fits=False, over=1e9)])
    assert "None that fits is faster." in out.getvalue()


def test_what_would_make_it_fit(console_at):
    console, out = console_at(80)
    print_explanation(console, problem(), PARAMETERS, training_plan(verdict="does not fit"), [change(0.9)])
    assert "To make it fit: tp 8→4, dp 2→4: −10.0%" in out.getvalue()
    console, out = console_at(80)
    print_explanation(console, problem(), PARAMETERS, training_plan(verdict="does not fit"), [change(0.9, fits=False, over=1e9)])
    assert "No single change makes it fit." in out.getvalue()


def test_serving_compares_with_one_pass_over_the_weights():
    first = limits(problem("inference"), serving_plan())[0]
    hbm = problem("inference").cluster.gpu.hbm_bytes_per_s
    assert f"{35e9 / hbm * 1e3:.1f} ms" in first
    assert "20.0 ms" in first


def test_the_document_is_strict_json_with_exact_sums():
    body = json.loads(dumps(explanation_document(problem(), {"name": "m"}, training_plan(), [change()], sources=True)))
    assert sum(body["plan"]["cost_s"].values()) == body["plan"]["total_s"] == 2.0
    stage = body["plan"]["memory"]["stages"][0]
    assert sum(stage["bytes"].values()) == stage["total_bytes"]
    assert body["changes"][0]["memory_change_bytes"] == 9.1e9
    assert set(body["sources"]["constants"]) == {"bubble_share"}
