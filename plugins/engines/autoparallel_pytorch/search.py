"""The choice of placements and states of least step time that fits in memory.

The step takes ``exchange + update + compute + weights − (1 − loss)·min(compute, weights)``: gathers of parameters and
reductions of gradients run beside computation, and ``loss`` of the shorter of the two stays visible (the core's
``overlap_loss``). With ``max(c, w) = max over λ in [0, 1] of (1 − λ)·c + λ·w``, and a price of μ seconds per byte that is
kept for the backward, each (λ, μ) gives a problem with fixed prices, which is solved exactly and bounds every plan that
fits from below: ``L(λ, μ) − μ·limit`` (Lagrangian relaxation; Fisher, Management Science 27, 1981). The best choice met
that fits is kept, with its gap to the best bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from autoparallel_core.errors import Infeasible
from autoparallel_core.solve.coupled import Answer, solve_coupled
from autoparallel_core.solve.couplings import Coupled
from autoparallel_pytorch.formulate import COMPUTE, EXCHANGE, UPDATE, WEIGHTS, Formulation

Array = NDArray[np.float64]
GAP = 1e-6
"""Relative, of one program."""


@frozen
class Objective:
    """How the kinds of time add up."""

    loss: float

    def step_s(self, seconds: Mapping[str, float]) -> float:
        c, w = seconds[COMPUTE], seconds[WEIGHTS]
        return seconds[EXCHANGE] + seconds[UPDATE] + self.loss * (c + w) + (1.0 - self.loss) * max(c, w)

    def hidden_s(self, seconds: Mapping[str, float]) -> float:
        """Seconds of weight traffic that computation hides, or of computation that weight traffic outlasts."""
        return (1.0 - self.loss) * min(seconds[COMPUTE], seconds[WEIGHTS])

    def prices(self, share: float) -> dict[str, float]:
        """Weights of the kinds for λ = ``share``."""
        keep = 1.0 - self.loss
        return {EXCHANGE: 1.0, UPDATE: 1.0, COMPUTE: self.loss + keep * (1.0 - share), WEIGHTS: self.loss + keep * share}


Key = tuple[str, int, int, int]


@frozen(eq=False)
class Choice:
    """By slot key: the rule taken on each mesh dimension, and the state (see ``recompute``)."""

    picks: Mapping[Key, tuple[int, ...]]
    states: Mapping[Key, int]


@frozen(eq=False)
class Point:
    """What one pair of prices gave."""

    share: float
    price: float
    """Seconds per byte kept."""
    choice: Choice
    seconds: Mapping[str, float]
    kept_bytes: float
    bound_s: float
    """``L(λ, μ)`` without ``− μ·limit``."""
    exact: bool


class Priced(Protocol):
    """A problem that can be solved for prices."""

    def solve(self, share: float, price: float, start: Point | None) -> Point:
        """The choice of least priced time."""


@frozen(eq=False)
class Outcome:
    """The best that fits."""

    best: Point
    step_s: float
    peak_bytes: float
    bound_s: float
    exact: bool
    """Every program was solved to optimality, so that the bound holds."""
    below: Point | None
    """The point of the next lower memory price: it takes less time and does not fit."""
    programs: int
    seconds: float

    @property
    def gap(self) -> float:
        return max(0.0, (self.step_s - self.bound_s) / self.step_s) if self.step_s > 0 else 0.0


@define(eq=False)
class Search:
    """Looks for prices. ``measure`` gives the memory of a point's program at its highest, and its step.

    ``problem`` prices weight traffic as if all tensors of a layer went together, so that it bounds every program. A choice may
    send them one by one: ``alone`` prices it so, and gives further choices for the prices that were found.
    """

    problem: Priced
    objective: Objective
    limit_bytes: float
    measure: Callable[[Point], tuple[float, float]]
    time_limit_s: float
    alone: Callable[[], Priced] | None = None
    tolerance: float = 1e-4
    started: float = field(factory=time.perf_counter)
    points: list[tuple[Point, float, float]] = field(factory=list)
    """With the peak and the step of their programs."""
    free: Point | None = None

    def open(self) -> float:
        """Solve without a price on memory; a bound on every plan."""
        if self.free is None:
            self.free = self._balance(0.0, None)
        return max(p.bound_s for p, _, _ in self.points)

    def run(self) -> Outcome:
        """Raises Infeasible, with what is missing, when no choice met fits."""
        self.started = time.perf_counter()
        self.open()
        free = self.free
        assert free is not None, "opened"
        if not self._fits(free):
            self._memory(free)
            best = self._best()
            if best is not None and not self._balanced(best):
                self._balance(best.price, best)
        best = self._best()
        if best is not None and self.alone is not None and self._measured(best)[1] > self._step(best) * (1.0 + self.tolerance):
            found = self.alone().solve(best.share, best.price, best)
            self.points.append((evolve(found, bound_s=-np.inf, exact=True), *self.measure(found)))
            best = self._best()
        if best is None:
            least = min(peak for _, peak, _ in self.points)
            raise Infeasible(
                f"the leanest plan found needs {least / 1e9:.2f} GB per GPU and the limit is {self.limit_bytes / 1e9:.2f} GB; "
                "use more GPUs, a smaller batch or a higher limit"
            )
        peak, step = self._measured(best)
        bound = max(p.bound_s - p.price * self.limit_bytes for p, _, _ in self.points)
        below = [(p, m) for p, m, _ in self.points if m > self.limit_bytes and p.share == best.share]
        nearest = min(below, key=lambda x: x[1], default=(None, 0.0))[0]
        return Outcome(
            best, step, peak, min(bound, step), all(p.exact for p, _, _ in self.points), nearest, len(self.points),
            time.perf_counter() - self.started,
        )  # fmt: skip

    def _solve(self, share: float, price: float, start: Point | None = None) -> Point:
        point = self.problem.solve(share, price, start)
        self.points.append((point, *self.measure(point)))
        return point

    def _balanced(self, point: Point) -> bool:
        """Whether the longer of computation and weight traffic is the one that was priced."""
        longer = point.seconds[WEIGHTS] - point.seconds[COMPUTE]
        return (longer >= 0 or point.share < 1.0) and (longer <= 0 or point.share > 0.0)

    def _balance(self, price: float, start: Point | None) -> Point:
        """Solve for the λ at which the bound is highest, for one price of memory; the best point met."""
        one = self._solve(1.0, price, start)
        if self._balanced(one):
            return one
        zero = self._solve(0.0, price, one)
        met = [one, zero]
        for _ in range(3):
            step, bound = min(map(self._step, met)), max(p.bound_s for p in met)
            if (
                self._balanced(zero)
                or step + price * min(p.kept_bytes for p in met) - bound <= self.tolerance * step
                or self._late()
            ):
                break
            # Choices on both sides of weights = compute: the λ where their priced times meet.
            at = [[self._value(p, price, share) for share in (0.0, 1.0)] for p in (one, zero)]
            slope = (at[0][1] - at[0][0]) - (at[1][1] - at[1][0])
            share = min(max((at[1][0] - at[0][0]) / slope if slope else 0.5, 0.02), 0.98)
            if any(abs(p.share - share) < 1e-3 for p in met):
                break
            point = self._solve(share, price, one)
            met.append(point)
            if point.seconds[WEIGHTS] > point.seconds[COMPUTE]:
                zero = point
            else:
                one = point
        return min(met, key=lambda p: self._step(p) + price * p.kept_bytes)

    def _memory(self, free: Point) -> None:
        """Raise the price of memory until a choice fits, then close in on the least price that does."""
        low, high, share = free, None, free.share
        price = self._step(free) / max(free.kept_bytes, 1.0) / 6.0
        for _ in range(10):
            point = self._solve(share, price, low)
            if self._fits(point):
                high = point
                break
            low = point
            price *= 6.0
            if self._late():
                break
        if high is None:
            return
        for _ in range(6):
            if self._late() or low.kept_bytes <= high.kept_bytes:
                break
            price = (self._value(high, 0.0, share) - self._value(low, 0.0, share)) / (low.kept_bytes - high.kept_bytes)
            if not low.price * (1 + 1e-6) < price < high.price * (1 - 1e-6):
                break
            point = self._solve(share, price, high)
            if self._value(point, price, share) >= self._value(low, price, share) * (1.0 - 1e-9):
                break
            low, high = (low, point) if self._fits(point) else (point, high)

    def _step(self, point: Point) -> float:
        return self.objective.step_s(point.seconds)

    def _value(self, point: Point, price: float, share: float) -> float:
        prices = self.objective.prices(share)
        return sum(w * point.seconds[k] for k, w in prices.items()) + price * point.kept_bytes

    def _measured(self, point: Point) -> tuple[float, float]:
        return next((peak, step) for p, peak, step in self.points if p is point)

    def _fits(self, point: Point) -> bool:
        return self._measured(point)[0] <= self.limit_bytes

    def _best(self) -> Point | None:
        fitting = [(p, step) for p, peak, step in self.points if peak <= self.limit_bytes]
        return min(fitting, key=lambda x: x[1], default=(None, 0.0))[0]

    def _late(self) -> bool:
        return time.perf_counter() - self.started > self.time_limit_s


# --- one program ------------------------------------------------------------------------------------------------------


def assignment(form: Formulation, prices: Mapping[str, float], extra: Mapping[int, Array] | None = None) -> Coupled:
    """The problem for fixed prices of the kinds; ``extra`` adds seconds to options of slots."""
    cost = []
    for slot in form.slots:
        c = np.zeros(len(slot.picks))
        for kind, seconds in slot.cost.items():
            c += prices[kind] * seconds
        cost.append(c)
    for i, more in (extra or {}).items():
        cost[i] = cost[i] + more
    return Coupled(tuple(cost), tuple((u, v, table.scaled(prices[kind])) for (u, v, kind), table in form.edges.items()))


def solve_program(
    problem: Coupled, form: Formulation, *, time_limit_s: float, start: Sequence[int] | None = None, last: Answer | None = None
) -> Answer:
    """The best choice; ``last`` is the answer for other prices. Raises Infeasible when none is permitted or none was found."""
    # In the order of execution, a hub after what it holds: neighbours are near each other.
    order = sorted(range(len(form.slots)), key=lambda i: (form.slots[i].node, form.slots[i].key[0] != "op"))
    messages = () if last is None else last.messages
    answer = solve_coupled(problem, order=order, gap=GAP, time_limit_s=time_limit_s, incumbent=start, messages=messages)
    if answer.choice is None:
        if not answer.permitted:
            raise Infeasible("no combination of placements satisfies the pins")
        raise Infeasible(f"no plan was found within {time_limit_s:.0f} s; give more time")
    return answer
