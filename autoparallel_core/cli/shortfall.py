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
"""Plans without the latency limits among which the nearest to them is picked."""


@frozen
class Shortfall:
    """What was found out; each field is None when it does not apply."""

    nodes: MinNodes | None = None
    """The fewest nodes on which something fits."""
    gpus: int | None = None
    """The fewest GPUs inside one node, where fewer than a node were given."""
    too_slow: Plan | None = None
    """The plan that fits and comes nearest to the latency limits."""


def look_further(question: Question, progress: Any) -> Shortfall:
    """Without the latency limits, with more GPUs of the node, with more nodes: the first that explains the failure."""
    if (slow := _nearest_to_limits(question)) is not None:
        return Shortfall(too_slow=slow)
    if (gpus := _within_a_node(question)) is not None:
        return Shortfall(gpus=gpus)
    have = question.cluster.n_nodes
    progress.say("looking for more nodes that would do")
    return Shortfall(nodes=fewest_nodes(question, progress, least=have + 1, most=max(_SMALL, _TIMES_MORE * have)))


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
    limits = [(name, limit) for name, limit in (("ttft_s", work.ttft_limit_s), ("tpot_s", work.tpot_limit_s)) if limit]
    if not limits:
        return None
    relaxed = problem.with_workload(evolve(work, ttft_limit_s=None, tpot_limit_s=None, goal="latency"))
    result = search(relaxed, planner=question.args.planner or "grid", top=_LOOKED_AT, host=question.host)

    def excess(plan: Plan) -> float:
        return max(float(getattr(plan.serving, name)) / limit for name, limit in limits)

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
