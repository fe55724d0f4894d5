"""``validate``: what it says of files that hold no records, broken ones, and records that cannot be predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "docs/examples/runs.jsonl"


@pytest.fixture
def records(tmp_path):
    """A file with the given lines."""

    def write(*lines: str) -> str:
        path = tmp_path / "runs.jsonl"
        path.write_text("".join(line + "\n" for line in lines))
        return str(path)

    return write


GOOD = EXAMPLES.read_text(encoding="utf-8").splitlines()[0]
VAGUE = json.dumps({"id": "vague", "mode": "training"})


def test_an_empty_file_is_bad_input(refused, records):
    assert "runs.jsonl: it is empty" in refused("validate", records())
    assert "runs.jsonl: it is empty" in refused("validate", records("", "  "), "--json")


def test_a_file_of_broken_lines_is_bad_input(refused, records):
    assert "none of its lines could be read: line 1 is not valid JSON" in refused("validate", records("{", "nonsense"))


def test_broken_lines_are_counted_beside_predicted_ones(cli, records):
    ran = cli("validate", records(GOOD, "{", VAGUE, '{"id": "x"}'))
    assert ran.code == 0
    assert ran.out.startswith("2 runs: 1 predicted, 1 refused, 2 lines that could not be read")
    assert "2 of 4 lines of" in ran.err
    assert "could not be read: line 2 is not valid JSON" in ran.err
    body = cli("validate", records(GOOD, "{"), "--json")
    assert body.code == 0
    assert [r["status"] for r in body.json["runs"]] == ["ok", "error"]


def test_nothing_predicted_is_no_success(cli, records):
    ran = cli("validate", records(VAGUE))
    assert ran.code == 3
    assert ran.out.startswith("1 run: 0 predicted, 1 refused")
    assert "could be predicted: the record states no" in ran.err.splitlines()[-1]
    assert cli("validate", records(VAGUE), "--json").json["runs"][0]["status"] == "refused"


def test_all_predicted(cli, records):
    ran = cli("validate", records(GOOD))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("1 run: 1 predicted\n")
