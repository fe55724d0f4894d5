"""``autoparallel validate FILE.jsonl``: predict measured runs and compare."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from autoparallel_core.cli.data import add_data_flags, print_used, refiner_of
from autoparallel_core.cli.hosting import host_of, print_warnings


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
    from autoparallel_core.records import RunRecord, read_records
    from autoparallel_core.runs.validate import document, predict_records

    host = host_of(args)
    rows = list(read_records(args.file))
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
    return 0
