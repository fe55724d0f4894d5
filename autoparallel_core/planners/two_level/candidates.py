"""Strategies whose uneven pipeline could beat the best even one, collected while the grid is priced.

From the evaluator's own figures of the usual spread of layers: the sum over stages is the slowest stage and its bubble;
spread perfectly and without recompute, each stage would take the average. What is slower than the best plan even so
cannot win. Axis legend: S strategies.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from autoparallel_core.planners.two_level.cells import FULL
from autoparallel_core.planners.two_level.stage_model import PIPELINE_CAUSES
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]

OUTSIDE = 0.7
"""Share of the time outside the pipeline that is sure to remain: it depends on the slowest stage, which changes."""
FILL = 0.8
"""Share of an interleaved pipeline's bubble that is sure to remain: its first row of chunks may become lighter."""


@define
class Candidates:
    """Strategies in reach of the best plan so far, with the bound on their step."""

    best_s: float = np.inf
    """Step of the best strategy that fits."""
    host_activations: bool = False
    """Whether strategies of one stage that do not fit may keep activations in host memory."""
    batches: list[StrategyBatch] = field(factory=list)
    bounds: list[Array] = field(factory=list)

    def add(self, e: Evaluation) -> None:
        """Keep what of a priced batch is in reach. One strategy stands for all its partial recomputes."""
        if e.fits.any():
            self.best_s = min(self.best_s, float(e.total_s[e.fits].min()))
        bound = least_step_s(e)
        keep = (bound < self.best_s) & ((e.batch.pp > 1) | (e.batch.recompute == FULL)) & (e.batch.recompute_layers == 0)
        if self.host_activations:
            keep |= (bound < self.best_s) & (e.batch.pp == 1) & (e.batch.recompute == 0) & ~e.fits
        if keep.any():
            self.batches.append(e.batch.take(keep))
            self.bounds.append(bound[keep])

    def within(self, step_s: float) -> StrategyBatch:
        """Strategies to be cut, or to recompute less, whose bound is below ``step_s``, the most promising first."""
        batch = self._within(step_s)
        return batch.take((batch.pp > 1) | (batch.recompute == FULL))

    def singles(self, step_s: float) -> StrategyBatch:
        """The same of strategies of one stage that need activations in host memory."""
        batch = self._within(step_s)
        return batch.take((batch.pp == 1) & (batch.recompute == 0))

    def _within(self, step_s: float) -> StrategyBatch:
        if not self.batches:
            return StrategyBatch.from_columns(0)
        batch, bound = StrategyBatch.concat(self.batches), np.concatenate(self.bounds)
        order = np.argsort(bound, kind="stable")
        return batch.take(order[bound[order] < step_s])


def least_step_s(e: Evaluation) -> Array:
    """Step with a perfect spread and no recompute, [S]."""
    assert e.training is not None
    core, batch = e.training.seconds, e.batch
    p, m = batch.pp.astype(np.float64), e.training.micro_batches
    slowest = e.training.slowest_stage_s
    bubble = core["bubble"]
    with np.errstate(divide="ignore", invalid="ignore"):
        chunked = bubble / (p - 1) * p * batch.vpp
        summed = np.where(p > 1, np.where(batch.vpp > 1, np.minimum(chunked, slowest * p), bubble + slowest), slowest)
        without = summed * np.where(slowest > 0, 1 - core["recompute"] / (m * slowest), 1.0)
    pipeline = np.where(batch.vpp > 1, m * without / p * FILL + bubble * FILL, without + np.maximum(m - 1, 0) * without / p)
    priced = sum((core[c] for c in PIPELINE_CAUSES), np.zeros(len(e)))
    changed = sum((e.seconds[c] for c in PIPELINE_CAUSES), np.zeros(len(e)))
    rest = e.total_s - changed - e.seconds["straggler"]
    ratio = np.where(priced > 0, changed / np.where(priced > 0, priced, 1.0), 1.0)
    return np.asarray((pipeline + core["pp_p2p"]) * ratio + OUTSIDE * rest)
