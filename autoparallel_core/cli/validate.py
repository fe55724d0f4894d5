"""``autoparallel validate FILE.jsonl``: predict measured runs and compare."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoparallel_core.cli.data import add_data_flags, print_used, refiner_of
from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.errors import Infeasible, SpecError
from autoparallel_core.report import format as fmt
from autoparallel_core.runs.record import RunRecord, Unreadable

if TYPE_CHECKING:
    from autoparallel_core.runs.validate import Prediction


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "validate",
        description="Predict the runs of a file of run records (one JSON object a line) and compare with what was measured.",
    )
    p.add_argument("file", type=Path, metavar="FILE", help="run records, see docs/reference/run-records.md")
    p.add_argument("--json", action="store_true", help="print the predictions as one JSON object")
    add_data_flags(p)
    p.add_argument("--worst", type=int, default=5, metavar="N", help="runs listed with the largest errors (default 5)")


def run(args: argparse.Namespace) -> int:
    from autoparallel_core.cli.progress import Progress
    from autoparallel_core.records import read_records
    from autoparallel_core.runs.validate import document, predict_records

    host = host_of(args)
    rows = list(read_records(args.file))
    _refuse_nothing(args.file, rows)
    with Progress(what="validating") as progress:
        refine = refiner_of(args, host)
        predictions = predict_records(rows, host, progress, refine=refine)
    print_used(refine)
    if args.json:
        print(json.dumps(document(predictions), allow_nan=False))
    else:
        from autoparallel_core.report.validation import print_validation

        print_validation([r for r in rows if isinstance(r, RunRecord)], predictions, worst=args.worst)
    print_warnings(host)
    _judge(args.file, rows, predictions)
    return 0


def _refuse_nothing(file: Path, rows: Sequence[RunRecord | Unreadable]) -> None:
    """Raise SpecError for a file without a single record."""
    broken = [r.reason for r in rows if isinstance(r, Unreadable)]
    if len(broken) < len(rows):
        return
    what = f"none of its lines could be read: {broken[0]}" if rows else "it is empty"
    raise SpecError(f"{file}: {what} (run records are one JSON object a line, see docs/reference/run-records.md)")


def _judge(file: Path, rows: Sequence[RunRecord | Unreadable], predictions: Sequence[Prediction]) -> None:
    """Say how many lines could not be read. Raises Infeasible when not one record was predicted."""
    broken = [r for r in rows if isinstance(r, Unreadable)]
    if broken:
        lines = fmt.plural(len(rows), "line")
        print(f"autoparallel: warning: {len(broken)} of {lines} of {file} could not be read: {broken[0].reason}", file=sys.stderr)
    if not any(p.status == "ok" for p in predictions):
        reason = next((p.reason for p in predictions if p.status != "ok"), None)
        raise Infeasible(f"no record of {file} could be predicted: {reason}")
