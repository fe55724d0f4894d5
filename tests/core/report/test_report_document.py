from __future__ import annotations

import json
import math

import numpy as np
from report_builders import result

from autoparallel_core.report.document import SCHEMA_VERSION, dumps, result_document


def test_no_nan_infinity_or_numpy_reaches_the_text():
    text = dumps({"a": math.nan, "b": [math.inf, np.float64(2.5), np.int64(3)], "c": {"d": -math.inf, "e": np.bool_(True)}})
    assert json.loads(text) == {"a": None, "b": [None, 2.5, 3], "c": {"d": None, "e": True}}
    assert "NaN" not in text
    assert "Infinity" not in text


def test_a_result_document_holds_the_answer():
    body = json.loads(dumps(result_document(result(), {"name": "m"}, pareto=True)))
    assert body["schema_version"] == SCHEMA_VERSION
    assert body["status"] == "ok"
    assert [s["rank"] for s in body["strategies"]] == [1, 2, 3]
    first = body["strategies"][0]
    assert first["strategy"] == "tp8 pp4 dp2 zero1 mbs1"
    assert first["axes"]["tp"] == 8
    assert sum(first["cost_s"].values()) == first["total_s"]
    assert first["training"]["step_s"] == 2.0
    assert first["memory"]["margin_bytes"] == 20e9
    assert first["memory"]["deciding_stage"] == 0
    assert body["refusals"] == {"heads % tp": 812, "experts % ep": 392}
    assert body["assumptions"] == ["--batch-size 512", "ep overlap: off"]
    assert len(body["pareto"]) == 1


def test_a_serving_document_has_intervals_as_two_keys():
    serving = result_document(result("inference"), {"name": "m"})["strategies"][0]["serving"]
    assert (serving["ttft_low_s"], serving["ttft_high_s"]) == (0.15, 0.3)
    assert "ttft_interval_s" not in serving


def test_nothing_fits_is_said():
    body = result_document(result(plans=(), fitting=0), {"name": "m"}, missing=["memory"])
    assert body["status"] == "nothing fits"
    assert body["strategies"] == []
    assert body["missing"] == ["memory"]
