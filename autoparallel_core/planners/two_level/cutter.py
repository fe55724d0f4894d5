"""From candidates to cuts: relaxation for all of them, exact cuts for the most promising, the evaluator for the best.

1. Candidates are ranked by the relaxation that lets layers be cut anywhere (:mod:`relaxed`).
2. In this order each gets its exact cut (:mod:`cut`, or :mod:`interleaved` with several chunks per rank), until the
   relaxation of the next is no longer near the best plan known.
3. The evaluator prices the best cuts in full, and the events of their pipelines are simulated (:mod:`simulated`).

Axis legend: S strategies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from autoparallel_core.planners.two_level.abilities import Abilities
from autoparallel_core.planners.two_level.candidates import Candidates
from autoparallel_core.planners.two_level.cells import FULL, Granularity
from autoparallel_core.planners.two_level.cut import Cut, best_cuts
from autoparallel_core.planners.two_level.interleaved import best_interleaved
from autoparallel_core.planners.two_level.layouts import plan_of
from autoparallel_core.planners.two_level.relaxed import relaxed_step_s
from autoparallel_core.planners.two_level.stage_model import StageModel, stage_model
from autoparallel_core.search.result import Plan
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

V_SHAPED = "dualpipe_v"
EXACT = 1000
"""Most strategies that get an exact cut."""
PRICED = 48
"""Most cuts that the evaluator prices."""
CLOSE = 1.03
"""Strategies and cuts this near to the best are looked at, too: evaluator and events may order them otherwise."""
PIECE = 65_536
"""Strategies that are relaxed at once."""


@define
class Cutter:
    """Call :meth:`relax`, then :meth:`cut`, then :meth:`plans`."""

    problem: Problem
    able: Abilities
    host: Host | None
    top: int
    best_s: float
    model: StageModel | None = None
    """Of the strategies near the best plan."""
    relaxed: NDArray[np.float64] = field(factory=lambda: np.zeros(0))
    """Their estimated steps, [S]."""
    cuts: list[tuple[StageModel, int, Cut]] = field(factory=list)
    modelled: int = 0
    solved: int = 0
    left: int = 0
    priced: int = 0
    fitting: int = 0

    def relax(self, seen: Candidates) -> float:
        """Rank what could beat the best even plan; the least step of any by the relaxation, infinite where there is none."""
        if self.problem.software.pipeline_schedule == V_SHAPED:
            return np.inf
        batch = seen.within(self.best_s)
        if not self.able.uneven:
            batch = batch.take(batch.recompute == FULL)
        self.modelled = len(batch)
        near = self._near(batch)
        if not len(near):
            return np.inf
        self.model = stage_model(self.problem, near, self.host)
        self.relaxed = relaxed_step_s(self.model)
        return float(self.relaxed.min())

    def cut(self) -> None:
        """Cut exactly, in the order of the relaxation."""
        if self.model is None:
            return
        model, roomy, best = self.model, self.model.with_room(), self.best_s
        order = np.argsort(self.relaxed, kind="stable")
        for i in order:
            limit = CLOSE * best
            if self.relaxed[i] >= limit or self.solved >= EXACT:
                break
            self.solved += 1
            cuts = self._cut(model, int(i), limit)
            best = min([best, *(c.step_s for c in cuts[:1])])
            if cuts:  # and those that leave room, in case they are nearly as fast
                cuts = (*cuts, *(c for c in self._cut(roomy, int(i), CLOSE * best) if c not in cuts))
            self.cuts += [(model, int(i), cut) for cut in cuts]
        self.left = int((self.relaxed[order[self.solved :]] < CLOSE * best).sum())

    def _near(self, batch: StrategyBatch) -> StrategyBatch:
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
