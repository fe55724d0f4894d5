"""``autoparallel plan show | diff | explain | html``: what a written plan says. Needs no tensor library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoparallel_core.spec.module_plan import ModulePlan


def run(args: argparse.Namespace) -> int:
    """Print or write what the word asks for. Raises SpecError when a plan cannot be read or has no such node."""
    {"show": _show, "diff": _diff, "explain": _explain, "html": _html}[args.word](args)
    return 0


def read(path: str) -> ModulePlan:
    """The plan in a file. Raises SpecError when it is none."""
    from autoparallel_core.spec.module_plan import read_module_plan

    return read_module_plan(Path(path).expanduser())


def _show(args: argparse.Namespace) -> None:
    from autoparallel_core.module_reading.summary import summary
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.document import envelope
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.report.module_plan.show import print_operators, print_plan

    plan = read(args.plan)
    if args.json:
        print_json(envelope("plan show", summary(plan)))
        return
    console = make_console()
    print_plan(console, summary(plan), every=args.all)
    if args.operators:
        print_operators(console, plan.document)


def _diff(args: argparse.Namespace) -> None:
    from autoparallel_core.module_reading.diff import diff
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.document import envelope
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.report.module_plan.diff import print_diff

    found = diff(read(args.a), read(args.b))
    if args.json:
        print_json(envelope("plan diff", found))
    else:
        print_diff(make_console(), found, args.a, args.b, every=args.all)


def _explain(args: argparse.Namespace) -> None:
    from autoparallel_core.module_reading.explain import explain_node
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.document import envelope
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.report.module_plan.explain import print_node

    found = explain_node(read(args.plan), args.node)
    if args.json:
        print_json(envelope("plan explain", found))
    else:
        print_node(make_console(), found)


def _html(args: argparse.Namespace) -> None:
    from autoparallel_core.cli.plan_make import refuse_existing, write_texts
    from autoparallel_core.report.document import envelope
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.report.module_plan.html import page

    path = Path(args.out).expanduser()
    refuse_existing([path], force=args.force)
    written = write_texts({path: page(read(args.plan))}, force=args.force)
    if args.json:
        print_json(envelope("plan html", {"files": [str(p) for p in written]}))
    else:
        print(f"written: {path}")
