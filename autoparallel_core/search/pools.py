"""Aggregated and disaggregated deployments of one question side by side.

Both keep the limits of the workload. Where nothing but the size of the cluster bounds the load, each is as full as it gets,
which are two different speeds for a user; the aggregated deployments are then also looked at where they give a user the
speed of the pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve, frozen

from autoparallel_core.search.api import search
from autoparallel_core.search.disaggregated import Disaggregated, search_disaggregated
from autoparallel_core.search.frontier import LoadPoint, frontier
from autoparallel_core.search.result import Plan, SearchResult
from autoparallel_core.spec.problem import Problem

if TYPE_CHECKING:
    from autoparallel_core.host import Host

_SHOWN, _LOOKED_AT = 3, 1000
_WAIT = "serving_ttft_steps"


@frozen
class Compared:
    """``deployments`` best first; empty when no two pools keep the limits."""

    deployments: tuple[Disaggregated, ...]
    aggregated: tuple[Plan, ...]
    """The best aggregated deployment of each cluster, one where both pools share it; without those that nothing fits."""
    at_same_speed: tuple[LoadPoint, ...]
    """Aggregated deployments of most throughput with a TPOT no longer than the best pools', where the load is open."""
    gain: float | None
    """What the best pools reach over the aggregated deployments, by the goal; above 1: pools win. None: nothing to compare."""
    decode: Problem | None
    """The decode pool's own cluster, when it has one."""
    steps_waited: float = 1.0
    """Decode steps that the answer itself lets a new request wait, where they are left out of this comparison; else 1."""


def compare_pools(result: SearchResult, host: Host, *, decode: Problem | None = None, top: int = _SHOWN) -> Compared:
    """Two pools beside the answer to the same question.

    Args:
        result: the aggregated answer; its cluster is shared by both pools, or is the prefill pool's alone.
        host: plugins.
        decode: the question on the decode pool's own cluster.
        top: deployments to return.
    """
    problem, waited = result.problem, result.problem.constant(_WAIT)
    if waited > 1:
        problem, decode = looking(problem), decode and looking(decode)
        result = search(problem, top=1, host=host)
    found = _distinct(search_disaggregated(problem, host, decode=decode, top=_LOOKED_AT), top)
    aggregated = [p for p in result.plans[:1] if p.verdict != "does not fit"]
    if decode is not None:
        aggregated += [p for p in search(decode, top=1, host=host).plans if p.verdict != "does not fit"]
    same: list[LoadPoint] = []
    if found and _open(problem):
        for p in (problem, decode):
            limited = p and p.with_workload(evolve(p.inference, tpot_limit_s=found[0].tpot_s))
            point = limited and frontier(limited, host, most=2).goodput
            same += [point] if point else []
    gain = _gain(problem, found, aggregated, same)
    return Compared(found, tuple(aggregated), tuple(same), gain, decode, max(waited, 1.0))


def looking(problem: Problem) -> Problem:
    """The question of an engine that looks for new requests at every step.

    How many decode steps a request waits to be seen is what published runs were set to; prefill pools have no such steps,
    so a comparison that counts them on one side would compare settings, not deployments.
    """
    wait = problem.constants[_WAIT]
    return evolve(problem, constants={**problem.constants, _WAIT: evolve(wait, value=min(wait.value, 1.0))})


def _distinct(found: tuple[Disaggregated, ...], top: int) -> tuple[Disaggregated, ...]:
    """The best of each decode layout: prefill layouts behind one that the decode pool bounds differ little."""
    best: dict[str, Disaggregated] = {}
    for d in found:
        best.setdefault(str(evolve(d.decode.strategy, dp=1)), d)
    return tuple(best.values())[:top]


def _open(problem: Problem) -> bool:
    """Whether nothing but the deployments themselves bounds the load."""
    work = problem.inference
    bounds = (work.concurrency, work.ttft_limit_s, work.tpot_limit_s)
    return work.goal != "latency" and not work.paced and all(b is None for b in bounds)


def _gain(problem: Problem, found: tuple[Disaggregated, ...], aggregated: list[Plan], same: list[LoadPoint]) -> float | None:
    if not found or not (aggregated or same):
        return None
    work, best = problem.inference, found[0]
    served = [p.serving for p in aggregated if p.serving is not None]
    if work.goal == "latency":
        return min(s.e2e_tpot_s * work.osl for s in served) / (best.ttft_s + best.tpot_s * (work.osl - 1))
    rates = [(p.output_tokens_per_s, p.gpus) for p in same] or [(s.output_tokens_per_s, s.gpus) for s in served]
    if work.concurrency is not None:  # they share the requests in flight, so that their rates do not add up
        rates = [max(rates)]
    tokens, used = sum(r for r, _ in rates), sum(g for _, g in rates)
    if work.goal == "cost":
        return (best.output_tokens_per_s / best.gpus) / (tokens / used)
    return best.output_tokens_per_s / tokens
