"""Plugin of the planner ``two_level``: uneven stages over an optimum inside each stage (docs/explanation/two-level-search.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError
from autoparallel_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from autoparallel_core.search.result import SearchResult
    from autoparallel_core.spec.problem import Problem

NAME = "two_level"
GRANULARITIES = ("stage", "layer")


@hookimpl
def planners() -> dict[str, str]:
    return {NAME: "training: stages of any size, recompute chosen by stage; exact cuts over the grid's strategies"}


@hookimpl
def plan(planner: str, problem: Problem, options: Mapping[str, Any]) -> SearchResult | None:
    """Search with stages of any size.

    ``options``: ``host`` (required), ``top`` plans to return, ``progress`` called with (strategies done, in all), and
    ``granularity``: ``stage`` (one strategy, stages of any size) or ``layer`` (a strategy per layer of a single stage).
    Raises SpecError for a serving problem.
    """
    if planner != NAME:
        return None
    if problem.mode != "training":
        raise SpecError(f"--planner {NAME} is for training; serving has no stages to cut by time (use grid)")
    from autoparallel_core.planners.two_level.uneven import uneven_search
    from autoparallel_core.search.rules import rules_for
    from autoparallel_core.spec.space import Space

    granularity = options.get("granularity") or GRANULARITIES[0]
    if granularity not in GRANULARITIES:
        raise SpecError(f"granularity '{granularity}' is unknown; known: {', '.join(GRANULARITIES)}")
    host, top, progress = options["host"], options.get("top", 10), options.get("progress")
    space = host.search_space(problem) or Space()

    def on(question: Problem, n: int) -> SearchResult:
        return uneven_search(question, space, rules_for(question, host), host=host, top=n, progress=progress)

    if granularity == "layer":
        from autoparallel_core.planners.two_level.layers import layer_search

        if problem.cluster.kinds:
            raise SpecError("a strategy per layer needs GPUs of one kind; leave --granularity out")
        return layer_search(problem, space, rules_for(problem, host), host=host, progress=progress)
    if problem.cluster.kinds:
        from autoparallel_core.planners.two_level.kinds import kinds_search

        return kinds_search(problem, space, host=host, top=top, progress=progress, alone=lambda part: on(part, 1))
    return on(problem, top)
