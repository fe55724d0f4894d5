"""``autoparallel export``: the launch files of one strategy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autoparallel_core.cli.flags import add_problem_flags
from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.values import whole
from autoparallel_core.errors import Infeasible, RuleViolation, SpecError

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.search.result import Plan
    from autoparallel_core.spec.problem import Problem


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser("export", description="Write the launch files of the best strategy, or of a given one.")
    p.add_argument("--out", metavar="DIR", required=True, help="directory for the files")
    p.add_argument("--strategy", metavar="S", help="in compact notation, 'tp8 pp4 dp2 mbs1' (default: the best one found)")
    p.add_argument("--plan", type=whole(), metavar="K", help="the K-th best instead of the best")
    p.add_argument("--force", action="store_true", help="overwrite files that exist")
    p.add_argument("--json", action="store_true", help="one JSON object")
    add_problem_flags(p)


def run(args: argparse.Namespace) -> int:
    """Write and list. Raises RuleViolation (exit code 3) for an illegal strategy, Infeasible when nothing fits."""
    from autoparallel_core.cli.exporting import export_plan
    from autoparallel_core.cli.options import Question
    from autoparallel_core.report.document import envelope, plan_document
    from autoparallel_core.report.inventory import print_json

    if args.strategy is not None and (args.planner or args.plan):
        flag = "--planner" if args.planner else "--plan"
        raise SpecError(f"{flag} chooses a strategy and --strategy gives one; give one of them")
    host = host_of(args)
    problem = Question(args, host).problem()
    plan = _given(args, problem, host) if args.strategy is not None else _found(args, problem, host)
    paths = export_plan(args, problem, plan, host, args.out)
    if args.json:
        print_json(envelope("export", {"files": [str(p) for p in paths], "plan": plan_document(plan)}))
    else:
        print(f"{problem.engine.name} {problem.engine_version}: {plan.strategy} ({plan.verdict})")
        for path in paths:
            print(f"  {path}")
    print_warnings(host)
    return 0


def _found(args: argparse.Namespace, problem: Problem, host: Host) -> Plan:
    from autoparallel_core.cli.planning import planner_of
    from autoparallel_core.cli.progress import Progress
    from autoparallel_core.search.api import search

    k = args.plan or 1
    with Progress() as progress:
        planner, how = planner_of(args)
        result = search(problem, planner=planner, top=k, host=host, progress=progress, options=how)
    if not result.fitting:
        n = problem.cluster.n_gpus
        raise Infeasible(f"nothing fits on {n:,} GPUs, so there is nothing to export; --strategy would force one")
    if len(result.plans) < k:
        raise SpecError(f"--plan {k}: only {len(result.plans)} strategies fit")
    return result.plans[k - 1]


def _given(args: argparse.Namespace, problem: Problem, host: Host) -> Plan:
    from autoparallel_core.search.explain import explain_strategy
    from autoparallel_core.search.rules import rules_for, violations
    from autoparallel_core.spec.strategy import parse_strategy

    strategy = parse_strategy(args.strategy)
    broken = violations(problem, strategy, rules_for(problem, host))
    if broken:
        reasons = "; ".join(v.sentence for v in broken)
        raise RuleViolation(f"'{strategy}' is illegal for {problem.engine.name} {problem.engine_version}: {reasons}")
    return explain_strategy(problem, strategy, host)
