"""``autoparallel explain``: one strategy in full."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoparallel_core.cli.flags import add_problem_flags
from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.errors import Infeasible, RuleViolation, SpecError

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.search.result import Plan
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import Strategy


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "explain", description="Where one strategy's time and memory go, what limits it, what would help most."
    )
    p.usage = "%(prog)s [--strategy S] [--sources] [--trace FILE] [--json] [flags of the bare form]"
    p.add_argument("--strategy", metavar="S", help="in compact notation, 'tp8 pp4 dp2 mbs1' (default: the best one found)")
    p.add_argument("--sources", action="store_true", help="list every constant with its origin and source")
    p.add_argument("--trace", metavar="FILE", help="training: write the step's timeline as Chrome trace events (ui.perfetto.dev)")
    p.add_argument("--json", action="store_true", help="one JSON object")
    add_problem_flags(p)


def run(args: argparse.Namespace) -> int:
    """Explain one strategy. Raises RuleViolation (exit code 3) after listing the rules that it breaks."""
    from autoparallel_core.cli.options import Question
    from autoparallel_core.models import describe
    from autoparallel_core.report import explain as report
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.search.explain import constants_read
    from autoparallel_core.search.neighbours import neighbours
    from autoparallel_core.search.time_sources import time_by_source

    if args.strategy is not None and args.planner:
        raise SpecError("--planner chooses a strategy and --strategy gives one; give one of them")
    host = host_of(args)
    question = Question(args, host)
    problem = question.problem()
    model = describe(question.arch)
    if args.strategy is not None:
        plan, chosen = _given(args, problem, host, model), "as given"
    else:
        plan, chosen = _best(args, problem, host)
    changes = neighbours(problem, plan.strategy, host)
    used = constants_read(problem, plan.strategy, host) if args.sources else None
    by_source = time_by_source(problem, plan.strategy, host) if args.sources else None
    traced = _write_trace(args, problem, plan, host) if args.trace else []
    if args.json:
        document = report.explanation_document(
            problem, model, plan, changes, sources=args.sources, constants=used, time_sources=by_source
        )
        print_json(document)
    else:
        rows = report.source_rows(problem, used) if args.sources else ()
        extra = [("Strategy", f"{plan.notation} · {chosen}"), *traced]
        report.print_explanation(
            make_console(), problem, model["parameters"], plan, changes, extra=extra, sources=rows, time_sources=by_source
        )
    print_warnings(host)
    return 0


def _write_trace(args: argparse.Namespace, problem: Problem, plan: Plan, host: Host) -> list[tuple[str, str]]:
    """Write the timeline of a step; the header's row that says so."""
    import json
    from pathlib import Path

    from autoparallel_core.search.trace import trace_events

    if problem.mode != "training":
        raise SpecError("--trace shows the pipeline of a training step; serving has none")
    events = trace_events(problem, plan.strategy, host, cut=plan.cut)
    path = Path(args.trace).expanduser()
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False), encoding="utf-8")
    return [("Trace", f"{path} ({len(events):,} events; open it in ui.perfetto.dev or chrome://tracing)")]


def _best(args: argparse.Namespace, problem: Problem, host: Host) -> tuple[Plan, str]:
    """The best plan that the search finds and how it was chosen. Raises Infeasible when none is legal."""
    from autoparallel_core.cli.planning import planner_of
    from autoparallel_core.cli.progress import Progress
    from autoparallel_core.search.api import search

    with Progress() as progress:
        planner, how = planner_of(args)
        result = search(problem, planner=planner, top=1, host=host, progress=progress, options=how)
    if result.plans and result.fitting:
        return result.plans[0], f"the best of {result.fitting:,} that fit, by the {result.planner} planner"
    if result.nearest_miss is None:
        raise Infeasible(f"no strategy is legal on {problem.cluster.n_gpus:,} GPUs, so there is none to explain; give --strategy")
    return result.nearest_miss, "nothing fits; this one misses by least"


def _given(args: argparse.Namespace, problem: Problem, host: Host, model: Mapping[str, Any]) -> Plan:
    """The plan of ``--strategy``.

    Raises:
        SpecError: it cannot be read, or its degrees do not multiply to the cluster.
        RuleViolation: it breaks rules of the engine; they have been printed.
    """
    from autoparallel_core.report import illegal as report
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.search.explain import explain_strategy
    from autoparallel_core.search.rules import rules_for, violations
    from autoparallel_core.spec.strategy import parse_strategy

    if not args.strategy.strip():
        raise SpecError("--strategy is empty; write it like 'tp8 pp4 dp2 mbs1'")
    strategy = parse_strategy(args.strategy)
    have, used = problem.cluster.n_gpus, strategy.world
    if used != have and (problem.mode == "training" or used > have):  # instances need not use every GPU
        gpus = f"{used} GPU{'' if used == 1 else 's'}"
        raise SpecError(f"--strategy '{strategy}' is for {gpus} and the cluster has {have}; {_dp_hint(strategy, have)}")
    broken = violations(problem, strategy, rules_for(problem, host))
    if not broken:
        return explain_strategy(problem, strategy, host)
    if args.json:
        print_json(report.violations_document(problem, model, strategy, broken))
    else:
        report.print_violations(problem, model["parameters"], strategy, broken)
    plural = "rules" if len(broken) > 1 else "rule"
    raise RuleViolation(f"'{strategy}' breaks {len(broken)} {plural} of {problem.engine.name} {problem.engine_version}")


def _dp_hint(strategy: Strategy, have: int) -> str:
    rest = strategy.world // strategy.dp
    if have % rest == 0:
        return f"with dp{have // rest} it would fill them"
    return f"without dp it takes {rest}, which does not divide {have}; --n-gpus {strategy.world} would do"
