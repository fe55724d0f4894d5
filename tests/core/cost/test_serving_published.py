"""Published serving runs, where their records are at hand: errors stay below what was reached."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import autoparallel_core as ap
from autoparallel_core.records import RunRecord, read_records
from autoparallel_core.runs.validate import predict_records

RECORDS = Path(__file__).parents[4] / "shared" / "validation" / "serving_speed.jsonl"


@pytest.mark.skipif(not RECORDS.exists(), reason="the run records are not part of the project")
def test_published_runs_are_predicted_within_a_tenth_or_so() -> None:
    rows = [r for r in read_records(RECORDS) if isinstance(r, RunRecord) and _scored(r)]
    assert len(rows) > 1000
    found = {p.id: p for p in predict_records(rows, ap.host())}
    assert sum(p.status == "ok" for p in found.values()) >= 0.98 * len(rows)

    def median_error(load: str, key: str) -> float:
        return statistics.median(
            abs(found[r.id].predicted[key] / r.measured[key] - 1)
            for r in rows
            if str(r.workload["load"]).startswith(load) and found[r.id].status == "ok" and r.measured.get(key)
        )

    assert median_error("closed loop", "tpot_ms") < 0.09
    assert median_error("closed loop", "output_tok_s") < 0.09
    assert median_error("closed loop", "ttft_ms") < 0.24
    assert median_error("offline", "output_tok_s") < 0.11


def _scored(r: RunRecord) -> bool:
    """Steady loads of a stated model and GPU; bursts are not steady."""
    load = str(r.workload.get("load", ""))
    stated = r.confidence == "high" and r.model and r.cluster.get("gpu")
    return bool(stated) and load.startswith(("closed loop", "offline")) and not r.id.startswith("inferencex-tp")
