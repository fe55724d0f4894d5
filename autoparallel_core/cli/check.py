"""``autoparallel check``: launch files, or a strategy, judged before any GPU hour is spent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autoparallel_core.cli.flags import add_problem_flags
from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.errors import Infeasible, RuleViolation, SpecError

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.search.check import Check


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "check",
        description="Whether launch files (or a strategy) are legal and fit, how fast they run, how far that is from the best.",
    )
    p.add_argument("files", nargs="*", metavar="FILE", help="launch scripts, arguments or configurations; a directory of them")
    p.add_argument("--strategy", metavar="S", help="a strategy in compact notation instead of files, 'tp8 pp4 dp2 mbs1'")
    p.add_argument("--json", action="store_true", help="one JSON object")
    add_problem_flags(p)


def run(args: argparse.Namespace) -> int:
    """Check and print. Raises RuleViolation or Infeasible (exit code 3), after printing, for a plan that would not run."""
    from autoparallel_core.models import describe
    from autoparallel_core.report.check import check_document, print_check
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.inventory import print_json

    if bool(args.files) == (args.strategy is not None):
        raise SpecError("give either launch files or --strategy" + (", not both" if args.files else ""))
    host = host_of(args)
    result = _checked_files(args, host) if args.files else _checked_strategy(args, host)
    model = describe(result.problem.arch)
    if args.json:
        print_json(check_document(result, model, args.files))
    else:
        print_check(make_console(), result, model["parameters"], args.files)
    print_warnings(host)
    return _verdict(result)


def _checked_files(args: argparse.Namespace, host: Host) -> Check:
    from autoparallel_core.cli.asked import merged, read_files, read_launch, stated_question, with_launch
    from autoparallel_core.cli.options import Question
    from autoparallel_core.search.check import check

    files = read_files(args.files)
    first = read_launch(files, host, args.engine)
    problem = with_launch(Question(merged(args, first, stated_question(files), host), host).problem(), first, args.software or ())
    launch = read_launch(files, host, first.engine, problem)
    assert launch.strategy is not None, "the host checks that a reader gives a strategy"
    return check(problem, launch.strategy, host, launch=launch, planner=args.planner)


def _checked_strategy(args: argparse.Namespace, host: Host) -> Check:
    from autoparallel_core.cli.options import Question
    from autoparallel_core.search.check import check
    from autoparallel_core.spec.strategy import parse_strategy

    strategy = parse_strategy(args.strategy)
    if args.n_gpus is None and args.cluster is None:
        args.n_gpus = strategy.world
    return check(Question(args, host).problem(), strategy, host, planner=args.planner)


def _verdict(result: Check) -> int:
    engine = f"{result.problem.engine.name} {result.problem.engine_version}"
    if result.status == "illegal":
        n = len(result.violations)
        raise RuleViolation(f"'{result.strategy}' is illegal for {engine}: {n} reason{'s' if n > 1 else ''}")
    if result.status == "does not fit":
        raise Infeasible(f"'{result.strategy}' does not fit: {'; '.join(result.shortfalls)}")
    return 0
