"""One strategy for the whole pipeline, stages of any size, recompute by stage: grid, relaxation, exact cuts, evaluator.

The grid prices every strategy with the usual spread; strategies out of reach of the best are dropped by a bound
(:mod:`candidates`). Those left are relaxed, cut and priced (:mod:`cutter`). The order of the simulated steps, even plans
included, is the answer. :func:`automatic_search` does so where it helps and answers as the grid does elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from autoparallel_core.planners.exhaustive import grid_search
from autoparallel_core.planners.reasons import with_reasons
from autoparallel_core.planners.two_level.abilities import Abilities, abilities_of
from autoparallel_core.planners.two_level.candidates import Candidates
from autoparallel_core.planners.two_level.compare import against_baseline
from autoparallel_core.planners.two_level.cutter import Cutter
from autoparallel_core.planners.two_level.host_activations import host_activation_plans
from autoparallel_core.planners.two_level.layouts import usual_plans
from autoparallel_core.planners.two_level.simulated import SIMULATED
from autoparallel_core.planners.two_level.stage_model import stage_model
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.result import TIE, Plan, SearchResult
from autoparallel_core.search.variants import SEARCHED, fold
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.rule import Rule

NAME = "two_level"
COMPARED = 24
"""Plans of the grid that are simulated, to find the best even one."""
_AWAY = 8
"""Plans with activations in host memory that are ranked at least."""
FILLING = 0.05
"""What a plan that fills the memory must gain over one that leaves room: runs of such plans both ran and failed."""
_NOTHING = 5e-4
"""Gains that print as 0.0%."""

Progress = Callable[[int, int], None]


def uneven_search(
    problem: Problem, space: Space, rules: tuple[Rule, ...], *, host: Host | None = None, top: int = 10,
    progress: Progress | None = None,
) -> SearchResult:  # fmt: skip
    """Search training strategies with stages of any size. Raises what :func:`grid_search` raises."""
    start = _Start.of(problem, space, rules, host, top, progress)
    start.cutter.relax(start.seen)
    return start.cut()


def automatic_search(
    problem: Problem, space: Space, rules: tuple[Rule, ...], *, host: Host | None = None, top: int = 10,
    progress: Progress | None = None,
) -> SearchResult:  # fmt: skip
    """The grid's answer, unless stages of any size are faster by more than a prediction can tell apart, or alone fit.

    A gain of a few percent that only filling the memory buys is not taken, but said.

    The result's ``chosen`` says which and why. Raises what :func:`grid_search` raises.
    """
    able, engine = abilities_of(problem), problem.engine.name
    if not able.uneven and able.recompute == "same" and not able.host_activations:
        result = grid_search(problem, space, rules, host=host, top=top, progress=progress)
        return evolve(result, chosen=f"{engine} {problem.engine_version} runs every stage alike")
    start = _Start.of(problem, space, rules, host, top, progress)
    least, best = start.cutter.relax(start.seen), start.cutter.best_s
    if least >= best * (1 - TIE) and not able.host_activations:
        return start.as_grid(f"no other cut of the layers into stages would gain {TIE:.0%}" if start.even else "")
    found = start.cut()
    if not found.plans:
        return start.as_grid("stages of any size do not fit either")
    if found.baseline is None:
        return evolve(found, chosen="nothing fits with the usual stages")
    gain = found.plans[0].throughput / found.baseline.throughput - 1
    if found.plans[0].stages and TIE < gain <= FILLING and not _room(found):
        return start.as_grid(f"stages of their own size would gain {gain:.1%}, but only by filling the memory")
    if found.plans[0].stages and gain > TIE:
        what = "activations in host memory" if found.plans[0].stages[0].offloaded else "stages of their own size or recompute"
        return evolve(found, chosen=f"{what} gain {gain:.1%} over the best usual ones")
    most = max(p.throughput / found.baseline.throughput - 1 for p in found.plans)
    little = f"gains {most:.1%}, less than a prediction can tell apart" if most > _NOTHING else "is no faster"
    return start.as_grid(f"the best other cut of the layers into stages {little}")


@frozen
class _Start:
    """The grid's answer and what could beat it."""

    problem: Problem
    able: Abilities
    host: Host | None
    top: int
    grid: SearchResult
    """With more plans than asked for, near-identical ones not folded."""
    seen: Candidates
    cutter: Cutter
    begun_s: float

    @classmethod
    def of(
        cls, problem: Problem, space: Space, rules: tuple[Rule, ...], host: Host | None, top: int, progress: Progress | None
    ) -> _Start:  # fmt: skip
        begun, able = time.perf_counter(), abilities_of(problem)
        seen = Candidates(host_activations=able.host_activations)

        def collect(question: Problem, batch: StrategyBatch, plugins: Host | None) -> Evaluation:
            e = evaluate(question, batch, plugins)
            seen.add(e)
            return e

        most = max(top * SEARCHED, COMPARED)
        grid = grid_search(problem, space, rules, host=host, top=most, progress=progress, price=collect, distinct=False)
        return cls(problem, able, host, top, grid, seen, Cutter(problem, able, host, top, best_s=seen.best_s), begun)

    @property
    def even(self) -> tuple[Plan, ...]:
        return self.grid.plans

    def as_grid(self, why: str) -> SearchResult:
        """What the grid planner answers."""
        plans = fold([_plain(p) for p in self.even[: self.top * SEARCHED]], self.top)
        elapsed = time.perf_counter() - self.begun_s
        return evolve(self.grid, plans=tuple(with_reasons(self.problem, plans)), elapsed_s=elapsed, chosen=why)

    def cut(self) -> SearchResult:
        """The answer with stages of any size; the cutter has relaxed the candidates."""
        problem, host, grid, cutter = self.problem, self.host, self.grid, self.cutter
        cutter.cut()
        even = sorted(usual_plans(problem, self.even[: max(self.top, COMPARED)], host), key=_step_s)
        away = host_activation_plans(problem, self.seen.singles(cutter.best_s), host, keep=max(self.top, _AWAY))
        plans = _ranked(problem, [*even, *cutter.plans(), *away], self.top)
        if plans and even:
            own = next(iter(usual_plans(problem, [explain_strategy(problem, plans[0].strategy, host)], host)))
            words = against_baseline(problem, plans[0], even[0], own, _head_layers(problem, plans[0], host))
            plans[0] = evolve(plans[0], reasons=(*words, *plans[0].reasons))
        return evolve(
            grid,
            plans=tuple(plans),
            fitting=grid.fitting + cutter.fitting + len(away),
            evaluated=grid.evaluated + cutter.priced,
            nearest_miss=None if plans else grid.nearest_miss,
            planner=NAME,
            elapsed_s=time.perf_counter() - self.begun_s,
            assumptions=(*grid.assumptions, *self.able.words, *cutter.words(), _events(problem)),
            baseline=even[0] if even else None,
        )


def _room(found: SearchResult) -> bool:
    """Whether the gain is not bought with the room in memory: a cut that gains leaves some, or the best even plan has none."""
    assert found.baseline is not None, "asked where an even plan fits"
    if found.baseline.verdict != "fits":
        return True
    least = found.baseline.throughput * (1 + TIE)
    return any(p.stages and p.verdict == "fits" and p.throughput > least for p in found.plans)


def _head_layers(problem: Problem, plan: Plan, host: Host | None) -> float:
    """What the head with the loss and multi-token prediction takes, in average layers."""
    model = stage_model(problem, StrategyBatch.of([plan.strategy]), host)
    counts = model.prefix[-1]
    return float(model.last_s[0] * counts.sum() / (counts @ model.time[0]))


def _step_s(plan: Plan) -> float:
    return plan.cost.total_s


def _ranked(problem: Problem, plans: list[Plan], top: int) -> list[Plan]:
    return with_reasons(problem, [_plain(p) for p in fold(_by_rank(plans), top)])


def _plain(plan: Plan) -> Plan:
    """Without reasons of another search, and without variants that differ in their stages only."""
    return evolve(plan, reasons=(), variants=tuple(dict.fromkeys(v for v in plan.variants if v != plan.strategy)))


def _by_rank(plans: list[Plan]) -> list[Plan]:
    """Fastest first; of those within a tie of the fastest left, those with room in memory before those that are tight."""
    out: list[Plan] = []
    left = sorted(plans, key=_step_s)
    while left:
        tied = [p for p in left if p.throughput >= left[0].throughput * (1 - TIE)]
        out += sorted(tied, key=lambda p: p.verdict != "fits")
        left = left[len(tied) :]
    return out


def _events(problem: Problem) -> str:
    schedule = problem.software.pipeline_schedule
    if schedule in SIMULATED:
        return "pipelines are simulated event by event, so their bubble may differ from the grid planner's closed form"
    return f"the schedule {schedule} has no simulation here; its bubble is the closed form's"
