"""Plugin of the planners ``two_level`` and ``auto`` (docs/explanation/two-level-search.md).

``two_level``: uneven stages over an optimum inside each stage. ``auto``: that where it helps, else the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError
from autoparallel_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from autoparallel_core.search.result import SearchResult
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.space import Space

NAME, AUTO = "two_level", "auto"
GRANULARITIES = ("stage", "degrees", "layer", "operator")


@hookimpl
def planners() -> dict[str, str]:
    return {
        AUTO: "two_level where stages of any size help or GPUs are of several kinds, grid elsewhere (the default)",
        NAME: "training: stages of any size, recompute chosen by stage; exact cuts over the grid's strategies",
    }


@hookimpl
def plan(planner: str, problem: Problem, options: Mapping[str, Any]) -> SearchResult | None:
    """Search with stages of any size.

    ``options``: ``host`` (required), ``top`` plans to return, ``progress`` called with (strategies done, in all), and
    ``granularity``: ``stage`` (one strategy, stages of any size), ``degrees`` (stages of different degrees), ``layer`` (a
    strategy per layer of a single stage) or ``operator`` (a sharding per operator of a single stage, beside the grid's
    plans).
    ``auto`` also takes the grid's options. Raises SpecError for a serving problem where ``two_level`` is asked for.
    """
    if planner == AUTO:
        return _automatic(problem, options)
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

    if granularity == "operator":
        if problem.cluster.kinds:
            raise SpecError("a sharding per operator needs GPUs of one kind; leave --granularity out")
        return _per_operator(problem, space, options)
    if granularity == "layer":
        from autoparallel_core.planners.two_level.layers import layer_search

        if problem.cluster.kinds:
            raise SpecError("a strategy per layer needs GPUs of one kind; leave --granularity out")
        return layer_search(problem, space, rules_for(problem, host), host=host, progress=progress)

    def usual() -> SearchResult:
        if not problem.cluster.kinds:
            return on(problem, top)
        from autoparallel_core.planners.two_level.kinds import kinds_search

        return kinds_search(problem, space, host=host, top=top, progress=progress, alone=lambda part: on(part, 1))

    if granularity == "degrees":
        from autoparallel_core.planners.two_level.degrees_answer import degrees_search

        return degrees_search(problem, space, host=host, top=top, usual=usual)
    return usual()


def _per_operator(problem: Problem, space: Space, options: Mapping[str, Any]) -> SearchResult:
    """The grid's plans, for comparison, and the sharding of every operator."""
    from attrs import evolve

    from autoparallel_core.planners.exhaustive import grid_search
    from autoparallel_core.planners.two_level.operators.search import search_operators
    from autoparallel_core.search.rules import rules_for

    host, top, progress = options["host"], options.get("top", 10), options.get("progress")
    grid = grid_search(problem, space, rules_for(problem, host), host=host, top=top, progress=progress)
    answer = search_operators(problem)
    words = "no sharding of the operators fits on one stage without recompute" if answer is None else ""
    return evolve(grid, operators=answer, planner=NAME, assumptions=(*grid.assumptions, *([words] if words else [])))


def _automatic(problem: Problem, options: Mapping[str, Any]) -> SearchResult | None:
    """By the problem: kinds of GPU, training with stages that may differ, everything else."""
    from attrs import evolve

    from autoparallel_core.planners import grid

    if problem.mode != "training" or options.get("first_fit"):
        return grid.plan(grid.NAME, problem, options)
    if problem.cluster.kinds:
        found = plan(NAME, problem, options)
        return evolve(found, chosen="GPUs of several kinds need stages of their own") if found is not None else None
    from autoparallel_core.planners.two_level.uneven import automatic_search
    from autoparallel_core.search.rules import rules_for
    from autoparallel_core.spec.space import Space

    host, top, progress = options["host"], options.get("top", 10), options.get("progress")
    space = host.search_space(problem) or Space()
    return automatic_search(problem, space, rules_for(problem, host), host=host, top=top, progress=progress)
