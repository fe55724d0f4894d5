"""Search by planner name: the function behind the command and the public API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError, UnknownPlugin
from autoparallel_core.naming import did_you_mean
from autoparallel_core.search.result import SearchResult
from autoparallel_core.spec.problem import Problem

if TYPE_CHECKING:
    from autoparallel_core.host import Host

SEVERAL_KINDS = "two_level"
"""The planner that gives each kind of GPU stages of its own."""
USUAL, PLAIN = "auto", "grid"
"""The planner taken when nobody names one, and the one taken where that plugin is disabled."""
Progress = Callable[[int, int], None]
"""Called with the strategies priced so far, and in all."""


def search(
    problem: Problem,
    *,
    planner: str | None = None,
    top: int = 10,
    host: Host | None = None,
    progress: Progress | None = None,
    options: dict[str, Any] | None = None,
) -> SearchResult:
    """Rank the strategies of a problem with the named planner.

    Args:
        problem: the question (:func:`autoparallel_core.make_problem`).
        planner: name of a planner plugin; None: ``auto``, which takes ``two_level`` where stages of any size help or the
            GPUs are of several kinds, and ``grid`` elsewhere; the result's ``chosen`` says why.
        top: plans to return.
        host: plugins; None for all installed ones.
        progress: called while searching with (strategies priced, strategies in all).
        options: further options that the planner documents.

    Raises:
        UnknownPlugin: no planner has this name; the message gives the near ones.
        SpecError: ``top`` is not positive, or nothing of the space divides.
    """
    if top < 1:
        raise SpecError(f"the number of plans to return must be at least 1, not {top}")
    if host is None:
        from autoparallel_core.host import host as default_host

        host = default_host()
    known = host.planners()
    if planner is None:
        planner = USUAL if USUAL in known else PLAIN
    if planner not in known:
        raise UnknownPlugin(f"unknown planner '{planner}'; {did_you_mean(planner, known)}")
    result = host.plan(planner, problem, {"host": host, "top": top, "progress": progress, **(options or {})})
    if result is None:
        raise UnknownPlugin(f"planner '{planner}' is registered, but its plugin gave no result (see the warnings)")
    return result
