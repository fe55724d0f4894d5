"""The fewest nodes on which something fits, and the fewest on which something fits with room.

More nodes do not always help (a batch may not divide by them), so the answer cannot be bisected. Powers of two are
tried first; between the first that fits and the one before it, every count is tried in order. What fits on fewer
nodes than a power of two that does not fit is therefore not found; ``tried`` says what was looked at.

A server may take a part of a node: where one node is enough, the fewest of its GPUs are looked for in the same way.

With room means: not tight, and without an optimizer in host memory unless the user asked for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attrs import define, evolve, field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.search.api import Progress, search
from autoparallel_core.search.result import SearchResult
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.problem import Problem

if TYPE_CHECKING:
    from autoparallel_core.host import Host

MOST_NODES = 4096
_ROOM_WITHIN = 16
"""Room is looked for on up to so many times the fewest nodes."""


@frozen
class MinNodes:
    """The answer: ``nodes`` is None when nothing up to ``most_nodes`` fits; ``result`` is then that of the largest tried."""

    nodes: int | None
    n_gpus: int | None
    result: SearchResult
    tried: tuple[int, ...]
    """Node counts looked at, in order."""
    skipped: tuple[tuple[int, str], ...]
    """Node counts that no strategy can fill, each with the reason."""
    most_nodes: int
    roomy_nodes: int | None = None
    """The fewest nodes with a plan that is not tight and offloads nothing; None when there is none, or nobody asked."""
    roomy_most: int | None = None
    """The largest count that was considered for that; None when nobody asked."""
    tried_gpus: tuple[int, ...] = ()
    """In serving, where one node is enough: numbers of its GPUs looked at, in order."""


def find_min_nodes(
    problem_for: Callable[[int], Problem],
    cluster: Cluster,
    *,
    planner: str = "grid",
    top: int = 10,
    most_nodes: int | None = None,
    least_nodes: int = 1,
    room: bool = False,
    host: Host | None = None,
    progress: Progress | None = None,
) -> MinNodes:
    """Search on growing clusters until something fits; in serving, until the requests asked for fit at once.

    Args:
        problem_for: the problem on so many GPUs.
        cluster: gives the GPUs of a node.
        planner: as in :func:`autoparallel_core.search.api.search`, as are ``top``, ``host`` and ``progress``.
        top: plans of the result.
        most_nodes: where to stop; None for ``MOST_NODES``.
        least_nodes: where to begin, when fewer are known not to fit.
        room: in training, also look for the fewest nodes that fit with room.
        host: plugins.
        progress: called during each search.

    Raises:
        SpecError: no node count up to the limit can be filled at all; where the reason is the same for every number, only it.
    """
    limit = MOST_NODES if most_nodes is None else most_nodes
    if limit < 1:
        raise SpecError(f"the most nodes to try must be at least 1, not {limit}")
    whole_nodes = _Sizes(problem_for, planner, host, progress, unit=cluster.gpus_per_node)
    parts = _Sizes(problem_for, planner, host, progress, unit=1)
    found = _first(whole_nodes.fits, least_nodes, max(limit, least_nodes))
    tried, skipped = whole_nodes.fitting, whole_nodes.skipped
    if not tried:
        reason = next(iter(skipped.values()))
        if _whatever_the_number(problem_for, cluster, skipped):
            raise SpecError(reason)
        raise SpecError(f"no number of nodes up to {limit} can be filled: {reason}")
    last = found if found is not None else max(tried)
    n_gpus = last * cluster.gpus_per_node
    if found == 1 and problem_for(n_gpus).mode == "inference" and n_gpus > 1:  # a server may be a part of a node
        n_gpus = _first(parts.fits, 1, n_gpus - 1) or n_gpus
    problem = problem_for(n_gpus)
    whole = {"whole_load": found is not None}
    full = search(problem, planner=planner, top=top, host=host, progress=progress, options=whole)
    if found is None and full.fitting:
        full = _none_holds_the_load(full)
    answer = MinNodes(
        nodes=found,
        n_gpus=None if found is None else n_gpus,
        result=full,
        tried=tuple(tried),
        skipped=tuple(sorted(skipped.items())),
        most_nodes=limit,
        tried_gpus=tuple(parts.looked_at),
    )
    if not room or found is None or problem.mode != "training":
        return answer
    most = max(min(limit, _ROOM_WITHIN * found), found)
    roomy = _first(lambda n: _has_room(problem_for, n * cluster.gpus_per_node, planner, host, progress), found, most)
    return evolve(answer, roomy_nodes=roomy, roomy_most=most)


@define
class _Sizes:
    """Clusters of whole units of so many GPUs, each searched once."""

    problem_for: Callable[[int], Problem]
    planner: str
    host: Host | None
    progress: Progress | None
    unit: int
    fitting: dict[int, int] = field(factory=dict)
    """Strategies that fit, by number of units."""
    skipped: dict[int, str] = field(factory=dict)
    """Why no layout fills so many units."""
    looked_at: list[int] = field(factory=list)

    def fits(self, n: int) -> bool:
        if n in self.looked_at:
            return self.fitting.get(n, 0) > 0
        self.looked_at.append(n)
        try:
            result = search(
                self.problem_for(n * self.unit), planner=self.planner, top=1, host=self.host, progress=self.progress,
                options={"first_fit": True, "whole_load": True},
            )  # fmt: skip
        except SpecError as e:
            self.skipped[n] = str(e)
            return False
        self.fitting[n] = result.fitting
        return result.fitting > 0


def _none_holds_the_load(result: SearchResult) -> SearchResult:
    """Deployments that fit and hold fewer requests than asked for are no answer; the one that holds most is the nearest."""
    held = [p for p in (*result.plans, *result.pareto) if p.serving is not None]
    nearest = max(held, key=lambda p: p.serving.max_concurrency if p.serving else 0)
    return evolve(result, plans=(), pareto=(), fitting=0, nearest_miss=nearest)


def _first(good: Callable[[int], bool], least: int, most: int) -> int | None:
    """The first count from ``least`` to ``most`` that is good, powers of two first (see the head of this file)."""
    sizes = [n for n in (least, *_powers(most)) if n >= least]
    sizes = sorted(set(sizes))
    found = next((n for n in sizes if good(n)), None)
    if found is None:
        return None
    below = max((n for n in sizes if n < found), default=least - 1)
    return next((n for n in range(below + 1, found) if good(n)), found)


def _has_room(
    problem_for: Callable[[int], Problem], n_gpus: int, planner: str, host: Host | None, progress: Progress | None
) -> bool:
    try:
        problem = problem_for(n_gpus)
        if not problem.training.optimizer_cpu_offload:
            problem = problem.with_workload(evolve(problem.training, optimizer_cpu_offload=False))
        result = search(problem, planner=planner, top=1, host=host, progress=progress)
    except SpecError:  # a number that cannot be filled has no room either
        return False
    # the front ends with the plan of most free memory
    return any(plan.verdict == "fits" for plan in (*result.plans, *result.pareto))


def _whatever_the_number(problem_for: Callable[[int], Problem], cluster: Cluster, skipped: dict[int, str]) -> bool:
    """Whether all numbers of nodes are refused for one and the same reason, which more nodes would not change."""
    reasons = set(skipped.values())
    if len(reasons) > 1 or len(skipped) > 1:
        return len(reasons) == 1
    try:
        problem_for(2 * max(skipped) * cluster.gpus_per_node)
    except SpecError as e:
        return str(e) in reasons
    return False


def _powers(limit: int) -> Iterator[int]:
    """1, 2, 4 … and ``limit`` itself."""
    n = 1
    while n < limit:
        yield n
        n *= 2
    yield limit
