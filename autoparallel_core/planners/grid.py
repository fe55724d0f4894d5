"""Plugin of the planner ``grid``: every legal strategy of the engine's space, priced and ranked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoparallel_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from autoparallel_core.search.result import SearchResult
    from autoparallel_core.spec.problem import Problem

NAME = "grid"


@hookimpl
def planners() -> dict[str, str]:
    return {NAME: "prices every legal strategy of the engine's space and ranks them"}


@hookimpl
def plan(planner: str, problem: Problem, options: Mapping[str, Any]) -> SearchResult | None:
    """Search exhaustively.

    ``options``: ``host`` (required), ``top`` plans to return, ``progress`` called with (strategies done, in all), and
    ``first_fit`` to stop at the first batch in which something fits (to answer only whether anything does), and
    ``whole_load`` to drop deployments whose cache holds fewer requests at once than are asked for.
    """
    if planner != NAME:
        return None
    from attrs import evolve

    from autoparallel_core.planners.exhaustive import grid_search
    from autoparallel_core.search.rules import rules_for
    from autoparallel_core.spec.space import Space

    host = options["host"]
    result = grid_search(
        problem,
        host.search_space(problem) or Space(),
        rules_for(problem, host),
        host=host,
        top=options.get("top", 10),
        progress=options.get("progress"),
        first_fit=options.get("first_fit", False),
        whole_load=options.get("whole_load", False),
    )
    if problem.mode == "training" and problem.training.activation_cpu_offload:
        note = "activations stay on the GPU: the two_level planner alone moves them to host memory"
        return evolve(result, assumptions=(*result.assumptions, note))
    return result
