"""The bare command: rank the strategies for a model on a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autoparallel_core.cli.flags import add_problem_flags
from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.values import whole
from autoparallel_core.errors import Infeasible

if TYPE_CHECKING:
    from autoparallel_core.cli.options import Question
    from autoparallel_core.search.min_nodes import MinNodes
    from autoparallel_core.search.result import SearchResult


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare every flag of the bare form."""
    add_problem_flags(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--top", type=whole(), metavar="N", default=10, help="strategies to show (default 10)")
    output.add_argument("--pareto", action="store_true", help="also those not beaten in both speed and free memory")
    output.add_argument("--find-min-nodes", action="store_true", help="the fewest nodes that fit, and the answer on them")
    output.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/reference/json.md)")


def run(args: argparse.Namespace) -> int:
    """Search and print. Raises Infeasible (exit code 3) when nothing fits."""
    from autoparallel_core.cli.options import Question
    from autoparallel_core.cli.progress import Progress
    from autoparallel_core.search.api import search

    host = host_of(args)
    question = Question(args, host)
    found: MinNodes | None = None
    with Progress() as progress:
        if args.find_min_nodes:
            found = _min_nodes(question, progress, up_to_asked=args.n_gpus is not None or args.cluster is not None)
            result = found.result
        else:
            result = search(question.problem(), planner=args.planner or "grid", top=args.top, host=host, progress=progress)
        if not result.fitting and found is None:
            found = _min_nodes(question, progress, up_to_asked=False)
    print_warnings(host)
    _print(args, question, result, found)
    return 0


def _min_nodes(question: Question, progress: Any, *, up_to_asked: bool) -> MinNodes:
    from autoparallel_core.search.min_nodes import find_min_nodes

    args = question.args
    return find_min_nodes(
        question.problem,
        question.cluster,
        planner=args.planner or "grid",
        top=args.top,
        most_nodes=question.cluster.n_nodes if up_to_asked else None,
        host=question.host,
        progress=progress,
    )


def _print(args: argparse.Namespace, question: Question, result: SearchResult, found: MinNodes | None) -> None:
    """Print the answer. Raises Infeasible, after printing, when nothing fits."""
    from autoparallel_core.models import describe
    from autoparallel_core.report.answer import print_answer, print_nothing_fits
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.document import result_document
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.report.missing import min_nodes_document, min_nodes_line, what_is_missing

    model = describe(question.arch)
    missing = [] if result.fitting else what_is_missing(result, found)
    if args.json:
        nodes = min_nodes_document(found) if found else None
        print_json(result_document(result, model, pareto=args.pareto, min_nodes=nodes, missing=missing))
    elif result.fitting:
        line = min_nodes_line(found) if found else None
        print_answer(make_console(), result, model["parameters"], pareto=args.pareto, min_nodes=line)
    else:
        print_nothing_fits(make_console(), result, model["parameters"], missing)
    if not result.fitting:
        raise Infeasible(f"nothing fits: {'; '.join(missing)}")
