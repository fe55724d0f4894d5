"""``autoparallel plan verify``: replay a plan on this CPU and compare with the unsharded module."""

from __future__ import annotations

import argparse
from typing import Any

from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.errors import SpecError, VerificationFailed


def run(args: argparse.Namespace) -> int:
    """Replay and print. Raises VerificationFailed (exit code 3), after printing, when the plan computes something else."""
    from autoparallel_core.cli.plan_make import importable_here, waiting
    from autoparallel_core.cli.plan_read import read
    from autoparallel_core.module_planning import verify
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.document import envelope
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.report.module_plan.show import print_verified
    from autoparallel_core.spec.module_source import ModuleSource

    if bool(args.module) != bool(args.inputs):
        raise SpecError("--module and --inputs go together: one makes the module, the other the arguments of one call")
    if args.processes is not None and args.processes < 1:
        raise SpecError(f"--processes: {args.processes} is too small, it must be at least 1")
    plan = read(args.plan)
    host = host_of(args)
    importable_here()
    source = ModuleSource(reduced=args.module, reduced_inputs=args.inputs) if args.module else None
    options: dict[str, Any] = {"seed": args.seed} | ({"processes": args.processes} if args.processes else {})
    with waiting("replaying the plan", quiet=args.json):
        figures = verify(plan, source=source, host=host, **options)
    if args.json:
        print_json(envelope("plan verify", figures))
    else:
        print_verified(make_console(), figures)
    print_warnings(host)
    if not figures["passed"]:
        worst = max(figures["output_error"], figures["gradient_error"])
        counted, planned = figures["collectives_counted"], figures["collectives_predicted"]
        raise VerificationFailed(
            f"{args.plan} does not compute what the module computes: relative error {worst:.2g}"
            if worst > figures["tolerance"]
            else f"{args.plan}: {counted} collectives were counted and {planned} planned"
        )
    return 0
