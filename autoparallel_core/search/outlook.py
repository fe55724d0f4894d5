"""What surrounds the best deployment of a serving answer.

The frontier of speed for one user against throughput; the load at which people can still use it, where it was priced at one
that nobody can; the layout that the opposite goal would choose; what each dimension of its layout is worth. All of it is
priced by the functions that the search uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.explain import plan_at
from autoparallel_core.search.frontier import Frontier, LoadPoint, frontier
from autoparallel_core.search.result import Plan, SearchResult
from autoparallel_core.search.rules import rules_for, violations
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

INTERACTIVE_TTFT_S, INTERACTIVE_TPOT_S = 2.0, 0.2
"""What people put up with: the limits of MLPerf Inference (v4.0) for a chat model of 70 billion parameters on a server."""
_PATIENCE = 2.0
"""A long prompt takes its time: no wait is too long that is below so many times its own prefill."""
_FRONTIER_POINTS = 16


@frozen
class UsableLoad:
    """How much load a deployment takes before it is too slow for people."""

    ttft_limit_s: float
    tpot_limit_s: float
    plan: Plan | None
    """The deployment with the most requests in flight within these limits; None: with one per instance it is slower."""
    best: LoadPoint | None
    """Of all deployments the one that serves most within these limits."""


@frozen
class Contrast:
    """Two layouts that each win at a load of their own."""

    other: Plan
    """What the opposite goal chooses, at its load."""
    other_here: Plan
    """The same layout at the best deployment's load, or at as much of it as its cache holds."""
    best_there: Plan
    """The best deployment's layout at the other's load."""


@frozen
class Without:
    """The best deployment without one dimension of its layout."""

    dimension: str
    """``attn_dp``: attention by tensor parallelism instead. ``ep``: experts cut by width instead."""
    plan: Plan


@frozen
class Outlook:
    """``goodput`` of the frontier is meant within the limits of the workload; the rest is None or empty where it adds nothing."""

    frontier: Frontier
    usable: UsableLoad | None = None
    contrast: Contrast | None = None
    without: tuple[Without, ...] = ()


def outlook(result: SearchResult, host: Host, *, points: int = _FRONTIER_POINTS) -> Outlook | None:
    """The outlook of a serving answer; None in training, for an offline run, and where nothing fits.

    Args:
        result: the answer.
        host: plugins.
        points: the frontier is thinned to at most so many.
    """
    problem = result.problem
    best = next((p for p in result.plans if p.verdict != "does not fit"), None)
    if problem.mode != "inference" or best is None or problem.inference.load == "offline" or problem.cluster.kinds:
        return None
    found = frontier(problem, host, most=points)
    free = frontier(without_limits(problem), host, most=2) if _limited(problem) else found
    return Outlook(
        found, usable_load(problem, best, host), _contrast(problem, best, free, host), _without(problem, best, host)
    )  # fmt: skip


def usable_load(problem: Problem, plan: Plan, host: Host) -> UsableLoad | None:
    """The load at which people can use a deployment that was priced beyond it; None where it is within, or limits were given."""
    work, f = problem.inference, plan.serving
    assert f is not None, "a plan of serving holds its figures"
    if work.ttft_limit_s is not None or work.tpot_limit_s is not None:
        return None
    ttft, tpot = max(INTERACTIVE_TTFT_S, _PATIENCE * f.prefill_s), INTERACTIVE_TPOT_S
    if f.ttft_s <= ttft and f.tpot_s <= tpot:
        return None
    asked = evolve(
        without_limits(problem).inference, concurrency=None, goal="throughput", ttft_limit_s=ttft, tpot_limit_s=tpot
    )  # fmt: skip
    at = _plan(problem.with_workload(asked), plan.strategy, host)
    assert at.serving is not None, "a plan of serving holds its figures"
    within = at.serving.ttft_s <= ttft and at.serving.tpot_s <= tpot
    return UsableLoad(ttft, tpot, at if within else None, frontier(problem.with_workload(asked), host, most=1).goodput)


def without_limits(problem: Problem) -> Problem:
    """The question with no limit on latency and no rate to reach."""
    return problem.with_workload(evolve(problem.inference, ttft_limit_s=None, tpot_limit_s=None, request_rate_per_s=None))


def _limited(problem: Problem) -> bool:
    work = problem.inference
    return work.ttft_limit_s is not None or work.tpot_limit_s is not None


def _contrast(problem: Problem, best: Plan, free: Frontier, host: Host) -> Contrast | None:
    """The frontier's other end, if another layout: the fastest for one user, or for the goal latency the one of most tokens."""
    if not free.points:
        return None
    end: LoadPoint = free.points[0 if problem.inference.goal == "latency" else -1]
    if end.strategy == best.strategy or best.serving is None:
        return None
    bare = without_limits(problem)

    def at(strategy: Strategy, concurrency: float) -> Plan:
        return _plan(bare.with_workload(evolve(bare.inference, concurrency=max(round(concurrency), 1))), strategy, host)

    return Contrast(
        other=at(end.strategy, end.concurrency),
        other_here=at(end.strategy, min(best.serving.concurrency, _most(bare, end.strategy, host))),
        best_there=at(best.strategy, min(end.concurrency, _most(bare, best.strategy, host))),
    )


def _most(problem: Problem, strategy: Strategy, host: Host) -> float:
    plan = _plan(problem.with_workload(evolve(problem.inference, concurrency=None, goal="throughput")), strategy, host)
    assert plan.serving is not None, "a plan of serving holds its figures"
    return plan.serving.concurrency


def _without(problem: Problem, best: Plan, host: Host) -> tuple[Without, ...]:
    """The best layout with attention dp turned into tp, and with experts cut by width, where the engine runs these."""
    s = best.strategy
    others = {}
    if s.attn_dp > 1:
        others["attn_dp"] = evolve(s, tp=s.tp * s.attn_dp, attn_dp=1, sp=1)
    if s.ep > 1:
        others["ep"] = evolve(s, ep=1, etp=s.ep * s.etp)
    out, rules = [], rules_for(problem, host)
    for dimension, strategy in others.items():
        try:
            if not violations(problem, strategy, rules):
                out.append(Without(dimension, _plan(problem, strategy, host)))
        except SpecError:  # a layout that cannot even be priced is no comparison
            continue
    return tuple(out)


def _plan(problem: Problem, strategy: Strategy, host: Host) -> Plan:
    return plan_at(problem, evaluate(problem, StrategyBatch.of([strategy]), host), 0)
