"""The bare command: rank the strategies for a model on a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from attrs import evolve

from autoparallel_core.cli.flags import add_problem_flags
from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.pools import add_pool_flags, wanted
from autoparallel_core.cli.values import whole
from autoparallel_core.errors import Infeasible, SpecError

if TYPE_CHECKING:
    from autoparallel_core.cli.options import Question
    from autoparallel_core.cli.shortfall import Shortfall
    from autoparallel_core.host import Host
    from autoparallel_core.search.result import SearchResult


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare every flag of the bare form."""
    add_problem_flags(parser)
    add_pool_flags(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--top", type=whole(), metavar="N", default=10, help="strategies to show (default 10)")
    output.add_argument(
        "--pareto",
        action="store_true",
        help="also those not beaten in both speed and free memory; inference: in both tokens/s per user and per GPU, with a plot",
    )
    output.add_argument("--find-min-nodes", action="store_true", help="the fewest nodes that fit, and the answer on them")
    output.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/reference/json.md)")
    output.add_argument("--export", metavar="DIR", help="write the launch files of the best strategy there")
    output.add_argument("--export-plan", type=whole(), metavar="K", help="those of the K-th strategy instead")
    output.add_argument("--force", action="store_true", help="overwrite files that exist")


def run(args: argparse.Namespace) -> int:
    """Search and print. Raises Infeasible (exit code 3) when nothing fits."""
    from autoparallel_core.cli.options import Question
    from autoparallel_core.cli.planning import planner_of
    from autoparallel_core.cli.progress import Progress
    from autoparallel_core.cli.shortfall import Shortfall, look_for_nodes, look_further
    from autoparallel_core.search.api import search

    if args.export_plan is not None and args.export is None:
        raise SpecError("--export-plan says which strategy's files to write: give --export DIR, too")
    host = host_of(args)
    question = Question(args, host)
    wanted(args, question.mode)
    with Progress() as progress:
        if args.find_min_nodes:
            found = look_for_nodes(question, progress)
            assert found.nodes is not None
            result = found.nodes.result
        else:
            planner, how = planner_of(args, shardings=not args.export)
            result = search(question.problem(), planner=planner, top=args.top, host=host, progress=progress, options=how)
            found = Shortfall() if result.fitting or question.cluster.kinds else look_further(question, progress)
        if found.too_slow is not None:  # it misses a limit by less than anything misses the memory
            result = evolve(result, nearest_miss=found.too_slow)
    print_warnings(host)
    _print(args, question, result, found, host)
    if args.export:
        from autoparallel_core.cli.exporting import export_ranked

        export_ranked(args, result, host)
    return 0


def _print(args: argparse.Namespace, question: Question, result: SearchResult, found: Shortfall, host: Host) -> None:
    """Print the answer. Raises Infeasible, after printing, when nothing fits."""
    from autoparallel_core.cli.pools import compare
    from autoparallel_core.models import describe
    from autoparallel_core.report.answer import print_answer, print_nothing_fits
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.document import result_document
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.report.missing import min_nodes_document, min_nodes_line, what_is_missing
    from autoparallel_core.report.outlook import surroundings
    from autoparallel_core.search.outlook import outlook

    model = describe(question.arch)
    missing = []
    if not result.fitting:
        missing = what_is_missing(
            result, found.nodes, gpus=found.gpus, too_slow=found.too_slow, less_load=found.less_load
        )  # fmt: skip
    around, pools = outlook(result, host), compare(args, result, host)
    if args.json:
        nodes = min_nodes_document(found.nodes) if found.nodes else None
        more = surroundings(result, around, pools, args.decode_gpu_hour_price)
        print_json(result_document(result, model, pareto=args.pareto, min_nodes=nodes, missing=missing, serving=more))
    else:
        console = make_console()
        if result.fitting:
            line = min_nodes_line(found.nodes) if found.nodes else None
            print_answer(console, result, model["parameters"], pareto=args.pareto, min_nodes=line, outlook=around)
        else:
            print_nothing_fits(console, result, model["parameters"], missing)
        if pools is not None:
            from autoparallel_core.report.pools import print_pools

            print_pools(console, result.problem, pools, args.decode_gpu_hour_price)
    if not result.fitting and not (pools and pools.deployments):
        raise Infeasible(f"nothing fits: {'; '.join(missing)}")
