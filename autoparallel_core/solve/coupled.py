"""Assignment problems of many options, solved: messages first, a linear program over what they leave open.

Where messages close the gap, no program is built. Where they do not, they tell for every option by how much a choice with
it exceeds the bound: options that are no better than the best choice met are out, and the program of ``assignment`` settles
the rest, nearest to the bound first when it is large.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.solve.assignment import solve_assignment
from autoparallel_core.solve.couplings import Coupled
from autoparallel_core.solve.messages import Passing
from autoparallel_core.solve.reduce import reduce_assignment

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

_PATIENCE = 12
"""Passes without progress after which messages have nothing more to say."""
_PROGRESS = 5e-8
"""Relative gain of a pass that counts."""
_PASSES = 300
_PROGRAMS = 3
_LARGEST_PROGRAM = 1_000_000
"""Table entries up to which the linear program takes what is left."""
_HALVINGS = 60
_ROUNDING = 1e-12


@frozen(eq=False)
class Answer:
    """``choice`` None: none was found; ``permitted`` says whether one may exist."""

    choice: tuple[int, ...] | None
    cost: float
    bound: float
    """No choice costs less."""
    passes: int
    permitted: bool = True
    messages: tuple[tuple[Array, Array], ...] = ()
    """There and back per coupling: a start for the same couplings with other costs."""

    @property
    def gap(self) -> float:
        """(cost − bound) / |cost|."""
        return max(0.0, self.cost - self.bound) / max(abs(self.cost), 1e-300) if np.isfinite(self.cost) else np.inf


def solve_coupled(
    problem: Coupled,
    *,
    order: Sequence[int] | None = None,
    gap: float = 1e-6,
    time_limit_s: float = 60.0,
    incumbent: Sequence[int] | None = None,
    messages: Sequence[tuple[Array, Array]] = (),
) -> Answer:
    """Solve to a relative ``gap``, or until the time is up.

    Args:
        problem: the problem; costs may be infinite where an option is forbidden.
        order: all nodes, neighbours close to each other; their numbers by default.
        gap: at which to stop.
        time_limit_s: wall-clock seconds.
        incumbent: a choice to start from.
        messages: of an answer to a problem of the same shape.
    """
    started = time.perf_counter()
    if any(not np.isfinite(c).any() for c in problem.cost):
        return Answer(None, np.inf, np.inf, 0, permitted=False)
    passing = Passing.of(problem, tuple(range(len(problem.cost)) if order is None else order))
    passing.resume(messages)
    if incumbent is not None:
        passing.offer(tuple(incumbent))

    def late() -> bool:
        return time.perf_counter() - started > time_limit_s

    stale = 0
    while True:
        best, bound = passing.best, passing.bound
        passing.step()
        if passing.closed(gap):
            return _answer(passing)
        gain = max(passing.bound - bound, best - passing.best if np.isfinite(best) else 0.0)
        stale = 0 if gain > _PROGRESS * abs(passing.bound) else stale + 1
        if stale == _PATIENCE or passing.passes == _PASSES or late():
            break
    above = passing.above()
    for _ in range(_PROGRAMS):
        if not _program(problem, passing, above, gap, max(1.0, time_limit_s - (time.perf_counter() - started))):
            return Answer(None, np.inf, np.inf, passing.passes, permitted=False)
        if passing.closed(gap) or late():
            break
    return _answer(passing)


def _program(problem: Coupled, passing: Passing, above: Sequence[Array], gap: float, time_limit_s: float) -> bool:
    """The linear program over the options nearest to the bound; False when it shows that no choice is permitted.

    ``above`` is by how much a choice with that option exceeds the bound, at least. Every option that may be in a better
    choice takes part, or as many as a program holds.
    """
    most = max(float(a[np.isfinite(a)].max()) for a in above)
    reach = min(passing.best - passing.base, most) + _ROUNDING * abs(passing.base)
    for _ in range(_HALVINGS):
        options = [np.flatnonzero(a <= reach) for a in above]
        if problem.size(options) <= _LARGEST_PROGRAM:
            break
        reach /= 2.0
    else:
        return True
    beyond = passing.base + reach if reach < most else np.inf
    found = _solved(problem, options, gap, time_limit_s)
    if found is not None:
        choice, least = found
        if choice is not None:
            passing.offer(choice)
        passing.rise(min(least, beyond))
    elif beyond < np.inf:
        passing.rise(beyond)
    return found is not None or beyond < np.inf or passing.choice is not None


def _solved(
    problem: Coupled, options: Sequence[IntArray], gap: float, time_limit_s: float
) -> tuple[tuple[int, ...] | None, float] | None:
    """The best choice among some options, and what none of them goes below; None when none is permitted."""
    reduced = reduce_assignment(problem.restricted(options)) if all(len(o) for o in options) else None
    if reduced is None:
        return None
    inner: Sequence[int] = ()
    slack = 0.0
    if reduced.nodes:
        solved = solve_assignment(reduced.problem, time_limit_s=time_limit_s, gap=gap)
        if solved.status == "infeasible":
            return None
        if solved.choice is None:
            return None, -np.inf
        inner, slack = solved.choice, solved.cost - solved.bound
    choice = tuple(int(o[k]) for o, k in zip(options, reduced.expand(inner), strict=True))
    return choice, problem.price(choice) - slack


def _answer(passing: Passing) -> Answer:
    return Answer(passing.choice, passing.best, passing.bound, passing.passes, messages=passing.messages())
