"""A strategy someone chose, judged: is it legal, does it fit, how fast is it, and how far from the best found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import evolve, frozen

from autoparallel_core.search.result import Plan
from autoparallel_core.spec.launch import Launch, Refusal
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Status = Literal["ok", "illegal", "does not fit"]
_LISTED = 3


@frozen
class Change:
    """A strategy to run instead."""

    plan: Plan
    words: str = ""
    """The single change that leads to it, when it is one."""


@frozen
class Check:
    """The verdict on one strategy."""

    problem: Problem
    strategy: Strategy
    rules: int
    """How many rules were asked."""
    violations: tuple[Refusal, ...] = ()
    """All broken rules and refused flags."""
    plan: Plan | None = None
    """Prices; None when the strategy is illegal."""
    shortfalls: tuple[str, ...] = ()
    """Why it does not fit, one sentence per resource."""
    instead: tuple[Change, ...] = ()
    """Illegal: the nearest legal strategies, those that fit first. Does not fit: the fastest single changes that do."""
    best: Plan | None = None
    """The best plan that the search finds; None when nothing fits."""
    launch: Launch | None = None

    @property
    def status(self) -> Status:
        if self.violations:
            return "illegal"
        return "does not fit" if self.shortfalls else "ok"

    @property
    def share_of_best(self) -> float | None:
        """Throughput over the best's; above 1 only where the search left this strategy out."""
        if self.plan is None or self.best is None or not self.best.throughput or self.status != "ok":
            return None
        return self.plan.throughput / self.best.throughput


def check(
    problem: Problem, strategy: Strategy, host: Host | None = None, *, launch: Launch | None = None, planner: str | None = None
) -> Check:
    """Judge one strategy.

    Args:
        problem: model, cluster, workload and engine.
        strategy: what is to run.
        host: plugins; None for all installed ones.
        launch: the files that it was read from, for what they state beyond a strategy.
        planner: how to search for the best; None for the usual way.

    Raises:
        SpecError: the problem cannot be priced or searched.
    """
    from autoparallel_core.search.explain import explain_strategy
    from autoparallel_core.search.explain_cut import explain_cut
    from autoparallel_core.search.rules import rules_for, violations

    if host is None:
        from autoparallel_core.host import host as default_host

        host = default_host()
    rules = rules_for(problem, host)
    refused = launch.refusals if launch else ()
    broken = (*(Refusal(v.rule, v.sentence, v.source) for v in violations(problem, strategy, rules)), *refused)
    best = _best(problem, host, planner)
    verdict = Check(problem=problem, strategy=strategy, rules=len(rules), launch=launch, best=best)
    if broken:
        from autoparallel_core.search.nearest import nearest_fitting

        near = nearest_fitting(problem, strategy, host, count=_LISTED)
        instead = tuple(Change(explain_strategy(problem, s, host)) for s in near)
        return evolve(verdict, violations=broken, instead=instead)
    plan = explain_cut(problem, strategy, launch.cut if launch else None, host)
    missing = tuple(shortfalls(problem, plan, launch))
    return evolve(verdict, plan=plan, shortfalls=missing, instead=_fitting(problem, strategy, host) if missing else ())


def _best(problem: Problem, host: Host, planner: str | None) -> Plan | None:
    from autoparallel_core.errors import SpecError
    from autoparallel_core.search.api import search

    try:
        result = search(problem, planner=planner, top=1, host=host) if planner else search(problem, top=1, host=host)
    except SpecError:  # nothing of the space divides; the strategy at hand is judged all the same
        return None
    return result.plans[0] if result.fitting else None


def _fitting(problem: Problem, strategy: Strategy, host: Host) -> tuple[Change, ...]:
    from autoparallel_core.search.explain import explain_strategy
    from autoparallel_core.search.neighbours import neighbours

    kept = [n for n in neighbours(problem, strategy, host) if n.fits][:_LISTED]
    return tuple(Change(explain_strategy(problem, n.strategy, host), n.change) for n in kept)


def shortfalls(problem: Problem, plan: Plan, launch: Launch | None = None) -> list[str]:
    """Sentences about each resource that does not suffice."""
    out: list[str] = []
    memory = plan.memory
    if plan.verdict == "does not fit":
        over = memory.reserved_bytes - memory.capacity_bytes
        d = memory.deciding
        if over > 0:
            need, have = _gb(memory.reserved_bytes), _gb(memory.capacity_bytes)
            out.append(f"stage {d.stage} ({d.layers} layers) needs {need} per GPU of {have}: {_gb(over)} too much")
            out += [
                f"stage {s.stage} ({s.layers} layers) allocates {_gb(s.total_bytes)} of {_gb(memory.capacity_bytes)}"
                for s in memory.stages
                if s is not d and s.total_bytes > memory.capacity_bytes
            ]
        host_over = memory.host_bytes_per_node - problem.cluster.host_memory_bytes_per_node
        if host_over > 0:
            need, have = _gb(memory.host_bytes_per_node), _gb(problem.cluster.host_memory_bytes_per_node)
            out.append(f"host memory: {need} per node of {have}: {_gb(host_over)} too much")
        if not out:
            out.append("the KV cache has no room for one request of the asked length")
    have_host = problem.cluster.host_memory_bytes_per_node
    if launch and launch.loading_host_bytes > have_host:
        out.append(
            f"host memory while the model is loaded: {_gb(launch.loading_host_bytes)} per node of {_gb(have_host)}, "
            "because every process loads a whole copy"
        )
    longest = launch.longest_request if launch else None
    if longest and plan.serving is not None:
        held = plan.serving.longest_alone_tokens
        if held is not None and held < longest:
            out.append(
                f"the engine insists that its KV cache holds one request of {longest:,} tokens, and there is room for "
                f"{max(held, 0):,}; limit requests to that"
            )
    return out


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.1f} GB"
