"""``autoparallel calibrate RUNS.jsonl``: learn from one's own measured runs how far predictions are off."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from autoparallel_core.cli.data import add_data_flags, print_used, refiner_of
from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.errors import SpecError


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "calibrate",
        description="Compare predictions with your own measured runs (records as 'autoparallel validate' reads them), learn few "
        "factors per stack, and write them to a file for --calibration.",
    )
    p.add_argument("file", type=Path, metavar="RUNS.jsonl", help="run records, see docs/reference/run-records.md")
    p.add_argument("--output", type=Path, metavar="FILE", default=Path("calibration.json"), help="default calibration.json")
    p.add_argument("--json", action="store_true", help="one JSON object")
    add_data_flags(p, calibration=False)


def run(args: argparse.Namespace) -> int:
    """Learn and write. Raises SpecError when no record can be used."""
    from autoparallel_core.calibrate.files import CalibrationFile, today, write_calibration
    from autoparallel_core.calibrate.learn import learn
    from autoparallel_core.calibrate.observe import observe
    from autoparallel_core.cli.progress import Progress
    from autoparallel_core.records import read_records

    host = host_of(args)
    refine = refiner_of(args, host)
    with Progress(what="predicting") as progress:
        observed = observe(read_records(args.file), host, refine=refine, progress=progress)
    lessons = learn(observed.by_stack)
    print_used(refine)
    print_warnings(host)
    if not lessons:
        why = f"; the first: {observed.unused[0][0]}: {observed.unused[0][1]}" if observed.unused else ": the file is empty"
        raise SpecError(f"{args.file}: no record can be learnt from{why}")
    found = CalibrationFile(lessons, str(args.file), today(), str(args.output))
    write_calibration(found, args.output)
    from autoparallel_core.report import calibration as report

    if args.json:
        from autoparallel_core.report.inventory import print_json

        print_json(report.calibration_document(found, observed.unused))
    else:
        report.print_calibration(found, observed.unused)
    return 0
