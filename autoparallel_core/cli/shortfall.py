"""When nothing fits: the further searches that say what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.cli.options import Question
    from autoparallel_core.search.frontier import LoadPoint
    from autoparallel_core.search.min_nodes import MinNodes
    from autoparallel_core.search.result import Plan
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.workload import InferenceWorkload

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
    less_load: LoadPoint | None = None
    """Where more requests are in flight than the limits of latency allow: the deployment that serves most within them."""


def look_further(question: Question, progress: Any) -> Shortfall:
    """Without the limits, with more GPUs of the node, with more nodes: the first that explains the failure.

    More nodes do not shorten a latency that nothing reaches, but they do raise the rate of requests that keeps it.
    """
    problem = question.problem()
    slow = _nearest_to_limits(question, problem)
    if slow is not None and _too_late(problem, slow):
        return Shortfall(too_slow=slow, less_load=_less_load(question, problem))
    if (gpus := _within_a_node(question)) is not None:
        return Shortfall(gpus=gpus, too_slow=slow)
    have = question.cluster.n_nodes
    progress.say("looking for more nodes that would do")
    nodes = fewest_nodes(question, progress, least=have + 1, most=max(_SMALL, _TIMES_MORE * have))
    return Shortfall(nodes=nodes, too_slow=slow)


def look_for_nodes(question: Question, progress: Any) -> Shortfall:
    """The fewest nodes, up to those that the flags give; where none fit because of a limit, the plan that comes nearest to it."""
    most = question.cluster.n_nodes if question.args.n_gpus or question.args.cluster else None
    found = fewest_nodes(question, progress, most=most, room=True)
    slow = _nearest_to_limits(question, found.result.problem) if found.nodes is None else None
    return Shortfall(nodes=found, too_slow=slow)


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


def _nearest_to_limits(question: Question, problem: Problem) -> Plan | None:
    """The plan of most throughput within the latency limits, where only the rate is missed; else the one nearest to them."""
    if problem.mode == "training":
        return None
    work = problem.inference
    latencies = [(name, limit) for name, limit in (("ttft_s", work.ttft_limit_s), ("tpot_s", work.tpot_limit_s)) if limit]
    if not latencies and not work.request_rate_per_s:
        return None
    if work.request_rate_per_s:
        slower = _searched(question, problem, evolve(work, request_rate_per_s=None, goal="throughput"))
        if slower:
            return slower[0]
    free = evolve(work, ttft_limit_s=None, tpot_limit_s=None, request_rate_per_s=None, goal="latency")

    def excess(plan: Plan) -> float:
        assert plan.serving is not None, "a plan of serving holds its figures"
        return max(float(getattr(plan.serving, name)) / limit for name, limit in latencies)

    return min(_searched(question, problem, free), key=excess, default=None) if latencies else None


def _searched(question: Question, problem: Problem, work: InferenceWorkload) -> tuple[Plan, ...]:
    """The plans of the same question with another workload."""
    from autoparallel_core.search.api import search

    result = search(problem.with_workload(work), planner=question.args.planner, top=_LOOKED_AT, host=question.host)
    return result.plans if result.fitting else ()


def _less_load(question: Question, problem: Problem) -> LoadPoint | None:
    from autoparallel_core.search.frontier import frontier

    return frontier(problem, question.host, most=1).goodput if problem.inference.concurrency else None


def _too_late(problem: Problem, plan: Plan) -> bool:
    """Whether a plan breaks a limit on latency, which more GPUs would not mend."""
    work, f = problem.inference, plan.serving
    assert f is not None, "a plan of serving holds its figures"
    limits = ((f.ttft_s, work.ttft_limit_s), (f.tpot_s, work.tpot_limit_s))
    return any(limit is not None and value > limit for value, limit in limits)


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
