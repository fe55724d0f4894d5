"""One strategy for the whole pipeline, stages of any size, recompute by stage: grid, relaxation, exact cuts, evaluator.

1. The grid prices every strategy with the usual spread; strategies out of reach of the best are dropped by a bound.
2. Those left are ranked by the relaxation that lets layers be cut anywhere (:mod:`relaxed`).
3. In this order each gets its exact cut (:mod:`cut`, or :mod:`interleaved` with several chunks per rank), until the
   relaxation of the next is no longer near the best plan known.
4. The evaluator prices the best cuts in full, the events of their pipelines are simulated (:mod:`simulated`), and the
   order of that, even plans included, is the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from attrs import define, evolve, field

from autoparallel_core.planners.exhaustive import grid_search
from autoparallel_core.planners.reasons import with_reasons
from autoparallel_core.planners.two_level.abilities import Abilities, abilities_of
from autoparallel_core.planners.two_level.candidates import Candidates
from autoparallel_core.planners.two_level.cells import FULL, Granularity
from autoparallel_core.planners.two_level.compare import against_baseline
from autoparallel_core.planners.two_level.cut import Cut, best_cuts
from autoparallel_core.planners.two_level.interleaved import best_interleaved
from autoparallel_core.planners.two_level.layouts import plan_of, usual_plans
from autoparallel_core.planners.two_level.relaxed import relaxed_step_s
from autoparallel_core.planners.two_level.simulated import SIMULATED
from autoparallel_core.planners.two_level.stage_model import StageModel, stage_model
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.result import TIE, Plan, SearchResult
from autoparallel_core.search.variants import fold
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.rule import Rule

NAME = "two_level"
V_SHAPED = "dualpipe_v"
COMPARED = 24
"""Plans of the grid that are simulated, to find the best even one."""
EXACT = 400
"""Most strategies that get an exact cut."""
PRICED = 48
"""Most cuts that the evaluator prices."""
CLOSE = 1.03
"""Strategies and cuts this near to the best are looked at, too: evaluator and events may order them otherwise."""
PIECE = 65_536
"""Strategies that are relaxed at once."""


def uneven_search(
    problem: Problem,
    space: Space,
    rules: tuple[Rule, ...],
    *,
    host: Host | None = None,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Search training strategies with stages of any size. Raises what :func:`grid_search` raises."""
    started = time.perf_counter()
    seen = Candidates()

    def collect(question: Problem, batch: StrategyBatch, plugins: Host | None) -> Evaluation:
        e = evaluate(question, batch, plugins)
        seen.add(e)
        return e

    grid = grid_search(problem, space, rules, host=host, top=max(top, COMPARED), progress=progress, price=collect, distinct=False)
    able = abilities_of(problem)
    cutter = _Cutter(problem, able, host, top, best_s=seen.best_s)
    cutter.run(seen)
    even = sorted(usual_plans(problem, grid.plans, host), key=_step_s)
    plans = _ranked(problem, [*even, *cutter.plans()], top)
    if plans and even:
        own = next(iter(usual_plans(problem, [explain_strategy(problem, plans[0].strategy, host)], host)))
        plans[0] = evolve(plans[0], reasons=(*against_baseline(problem, plans[0], even[0], own), *plans[0].reasons))
    return evolve(
        grid,
        plans=tuple(plans),
        fitting=grid.fitting + cutter.fitting,
        evaluated=grid.evaluated + cutter.priced,
        nearest_miss=None if plans else grid.nearest_miss,
        planner=NAME,
        elapsed_s=time.perf_counter() - started,
        assumptions=(*grid.assumptions, *able.words, *cutter.words(), _events(problem)),
        baseline=even[0] if even else None,
    )


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


@define
class _Cutter:
    """Steps 2 to 4."""

    problem: Problem
    able: Abilities
    host: Host | None
    top: int
    best_s: float
    cuts: list[tuple[StageModel, int, Cut]] = field(factory=list)
    modelled: int = 0
    solved: int = 0
    left: int = 0
    priced: int = 0
    fitting: int = 0

    def run(self, seen: Candidates) -> None:
        """Relax, order, cut."""
        if self.problem.software.pipeline_schedule == V_SHAPED:
            return
        batch = seen.within(self.best_s)
        if not self.able.uneven:
            batch = batch.take(batch.recompute == FULL)
        self.modelled = len(batch)
        near = self._relaxed(batch)
        if not len(near):
            return
        model = stage_model(self.problem, near, self.host)
        roomy = model.with_room()
        relaxed = relaxed_step_s(model)
        best = self.best_s
        order = np.argsort(relaxed, kind="stable")
        for i in order:
            limit = CLOSE * best
            if relaxed[i] >= limit or self.solved >= EXACT:
                break
            self.solved += 1
            cuts = self._cut(model, int(i), limit)
            best = min([best, *(c.step_s for c in cuts[:1])])
            if cuts:  # and those that leave room, in case they are nearly as fast
                cuts = (*cuts, *(c for c in self._cut(roomy, int(i), CLOSE * best) if c not in cuts))
            self.cuts += [(model, int(i), cut) for cut in cuts]
        self.left = int((relaxed[order[self.solved :]] < CLOSE * best).sum())

    def _relaxed(self, batch: StrategyBatch) -> StrategyBatch:
        """Those whose relaxation is near the best plan known."""
        kept = []
        for start in range(0, len(batch), PIECE):
            piece = batch.take(np.arange(start, min(start + PIECE, len(batch))))
            relaxed = relaxed_step_s(stage_model(self.problem, piece, self.host))
            kept.append(piece.take(relaxed < CLOSE * self.best_s))
        return StrategyBatch.concat(kept)

    def _cut(self, model: StageModel, i: int, limit: float) -> tuple[Cut, ...]:
        out: list[Cut] = []
        for recompute in self._granularities(model, i):
            out += (best_interleaved if model.batch.vpp[i] > 1 else best_cuts)(model, i, recompute=recompute, below_s=limit)
        return tuple(sorted(out, key=lambda c: c.step_s))

    def _granularities(self, model: StageModel, i: int) -> tuple[Granularity, ...]:
        if self.able.recompute != "same" or model.batch.recompute[i] != FULL:
            return ("stage" if self.able.recompute == "same" else self.able.recompute,)
        p = int(model.batch.pp[i] * model.batch.vpp[i])
        return tuple(range(1, -(-self.problem.arch.num_layers // p) + 1))

    def plans(self) -> list[Plan]:
        """The best cuts that fit, by the evaluator."""
        out: list[Plan] = []
        for model, i, cut in sorted(self.cuts, key=lambda c: c[2].step_s)[: max(PRICED, 3 * self.top)]:
            plan = plan_of(model, i, cut, self.host)
            self.priced += 1
            if plan.verdict != "does not fit":
                out.append(plan)
        self.fitting = len(out)
        return out

    def words(self) -> tuple[str, ...]:
        """What was searched, and how far the answer is proven."""
        if self.problem.software.pipeline_schedule == V_SHAPED:
            return (f"stages of {V_SHAPED} hold both ends of the model in one and are not cut here; these are the grid's plans",)
        reach = f"{self.modelled:,} strategies could beat the best even one"
        out = [f"stages of any size: {reach}; {self.solved:,} were cut exactly, {self.priced:,} layouts priced in full"]
        if self.left:
            out.append(f"{self.left:,} more whose relaxation is in reach were not cut (limit {EXACT})")
        return tuple(out)
