"""The fewest nodes on which something fits.

More nodes do not always help (a batch may not divide by them), so the answer cannot be bisected. Powers of two are
tried first; between the first that fits and the one before it, every count is tried in order. What fits on fewer
nodes than a power of two that does not fit is therefore not found; ``tried`` says what was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.search.api import Progress, search
from autoparallel_core.search.result import SearchResult
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.problem import Problem

if TYPE_CHECKING:
    from autoparallel_core.host import Host

MOST_NODES = 4096


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


def find_min_nodes(
    problem_for: Callable[[int], Problem],
    cluster: Cluster,
    *,
    planner: str = "grid",
    top: int = 10,
    most_nodes: int | None = None,
    least_nodes: int = 1,
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
        host: plugins.
        progress: called during each search.

    Raises:
        SpecError: no node count up to the limit can be filled at all.
    """
    limit = MOST_NODES if most_nodes is None else most_nodes
    if limit < 1:
        raise SpecError(f"the most nodes to try must be at least 1, not {limit}")
    sizes = [n for n in _powers(max(limit, least_nodes)) if n >= least_nodes]
    tried: dict[int, SearchResult] = {}
    skipped: dict[int, str] = {}

    def fits(nodes: int) -> bool:
        if nodes in skipped:
            return False
        try:
            problem = problem_for(nodes * cluster.gpus_per_node)
            options = {"first_fit": True, "whole_load": True}
            tried[nodes] = search(problem, planner=planner, top=1, host=host, progress=progress, options=options)
        except SpecError as e:
            skipped[nodes] = str(e)
            return False
        return bool(tried[nodes].fitting)

    found = next((n for n in sizes if fits(n)), None)
    if found is not None:
        below = max((n for n in sizes if n < found), default=least_nodes - 1)
        found = next((n for n in range(below + 1, found) if fits(n)), found)
    elif not tried:
        raise SpecError(f"no number of nodes up to {limit} can be filled: {next(iter(skipped.values()))}")
    last = found if found is not None else max(tried)
    problem = problem_for(last * cluster.gpus_per_node)
    whole = {"whole_load": found is not None}
    full = search(problem, planner=planner, top=top, host=host, progress=progress, options=whole)
    return MinNodes(
        nodes=found,
        n_gpus=None if found is None else found * cluster.gpus_per_node,
        result=full,
        tried=tuple(tried),
        skipped=tuple(sorted(skipped.items())),
        most_nodes=limit,
    )


def _powers(limit: int) -> Iterator[int]:
    """1, 2, 4 … and ``limit`` itself."""
    n = 1
    while n < limit:
        yield n
        n *= 2
    yield limit
