"""When nothing fits: the further searches that say what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.cli.options import Question
    from autoparallel_core.search.min_nodes import MinNodes
    from autoparallel_core.search.result import Plan

_TIMES_MORE, _SMALL = 16, 64
"""The hint looks at up to so many times the nodes given, and at least at so many nodes."""
_LOOKED_AT = 200
"""Plans without the limits of latency and rate among which the nearest to them is picked."""


@frozen
class Shortfall:
    """What was found out; each field is None when it does not apply."""

    nodes: MinNodes | None = None
    """The fewest nodes on which something fits."""
    gpus: int | None = None
    """The fewest GPUs inside one node, where fewer than a node were given."""
    too_slow: Plan | None = None
    """The plan that fits and comes nearest to the limits of latency and rate."""


def look_further(question: Question, progress: Any) -> Shortfall:
    """Without the limits, with more GPUs of the node, with more nodes: the first that explains the failure.

    More nodes do not shorten a latency that nothing reaches, but they do raise the rate of requests.
    """
    slow = _nearest_to_limits(question)
    if slow is not None and (question.args.request_rate is None or question.args.ttft_ms or question.args.tpot_ms):
        return Shortfall(too_slow=slow)
    if (gpus := _within_a_node(question)) is not None:
        return Shortfall(gpus=gpus, too_slow=slow)
    have = question.cluster.n_nodes
    progress.say("looking for more nodes that would do")
    nodes = fewest_nodes(question, progress, least=have + 1, most=max(_SMALL, _TIMES_MORE * have))
    return Shortfall(nodes=nodes, too_slow=slow)


def fewest_nodes(
    question: Question, progress: Any, *, least: int = 1, most: int | None = None, room: bool = False
) -> MinNodes:  # fmt: skip
    """The fewest nodes that fit between two numbers (None: as many as the search allows), and that fit with ``room``."""
    from autoparallel_core.search.min_nodes import find_min_nodes

    args, cluster = question.args, question.cluster
    if room and cluster.n_gpus < cluster.gpus_per_node:  # the most to consider is a part of a node
        cluster = evolve(cluster, gpus_per_node=cluster.n_gpus)
    return find_min_nodes(
        question.problem,
        cluster,
        planner=args.planner or "grid",
        top=getattr(args, "top", 1),
        most_nodes=most,
        least_nodes=least,
        room=room,
        host=question.host,
        progress=progress,
    )


def _nearest_to_limits(question: Question) -> Plan | None:
    from autoparallel_core.search.api import search

    problem = question.problem()
    if problem.mode == "training":
        return None
    work = problem.inference
    latencies = [(name, limit) for name, limit in (("ttft_s", work.ttft_limit_s), ("tpot_s", work.tpot_limit_s)) if limit]
    if not latencies and not work.request_rate_per_s:
        return None
    free = evolve(work, ttft_limit_s=None, tpot_limit_s=None, request_rate_per_s=None)
    free = evolve(free, goal="latency" if latencies else "throughput")
    result = search(problem.with_workload(free), planner=question.args.planner, top=_LOOKED_AT, host=question.host)

    def excess(plan: Plan) -> float:
        assert plan.serving is not None, "a plan of serving holds its figures"
        over = [float(getattr(plan.serving, name)) / limit for name, limit in latencies]
        return max(*over, (work.request_rate_per_s or 0.0) / max(plan.serving.requests_per_s, 1e-30), 0.0)

    return min(result.plans, key=excess) if result.fitting else None


def _within_a_node(question: Question) -> int | None:
    from autoparallel_core.search.api import search

    cluster = question.cluster
    for n in range(cluster.n_gpus + 1, cluster.gpus_per_node):
        try:
            result = search(question.problem(n), planner=question.args.planner or "grid", top=1, host=question.host)
        except SpecError:  # a batch or a network that this number does not allow is no answer
            continue
        if result.fitting:
            return n
    return None
