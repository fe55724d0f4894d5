"""The best of a stream of batches in bounded memory: the top k, the Pareto front, the nearest miss.

Scores are "larger is better". Scores within ``TIE`` of the best of their group are ties (the model is not that
accurate), which a strategy that leaves room in memory wins, then the plainer one: fewer dimensions in use, then
smaller degrees, less recompute, no offload. Groups are formed from the top: the
best score leads the first group, the best of the rest the second, and so on.

Axis legend: S strategies of a batch.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from autoparallel_core.search.result import TIE
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_DIMENSIONS = ("tp", "pp", "vpp", "cp", "ep", "etp", "attn_dp", "dp")
_SMALLER_FIRST = ("tp", "pp", "cp", "ep", "etp", "vpp", "attn_dp")
_POOL = 4096
_EMPTY = StrategyBatch.from_columns(0)


def plainness(batch: StrategyBatch) -> tuple[IntArray, ...]:
    """Sort keys of the tie-break, most significant first; smaller is plainer. A total order over distinct strategies."""
    used = sum((batch.columns[c] > 1).astype(np.int64) for c in _DIMENSIONS[:-1]) + (batch.offload > 0)
    ranks = batch.dp * batch.cp
    hybrid = ((batch.zero > 0) & (batch.shard != ranks)).astype(np.int64)
    partial = (batch.recompute_layers > 0).astype(np.int64)
    smaller = tuple(batch.columns[c] for c in _SMALLER_FIRST)
    return (
        used + hybrid, *smaller, batch.recompute, -partial, batch.recompute_layers, batch.offload,
        batch.zero, -batch.shard, batch.mbs, -batch.sp, batch.dp,
    )  # fmt: skip


def rank_order(batch: StrategyBatch, score: FloatArray, *, tight: NDArray[np.bool_] | None = None, tie: float = TIE) -> IntArray:
    """Indices, best first, with ties resolved by room in memory (``tight`` marks those without) and by plainness."""
    n = len(batch)
    if not n:
        return np.zeros(0, dtype=np.int64)
    descending = np.argsort(-score, kind="stable")
    sorted_score = score[descending]
    group = np.zeros(n, dtype=np.int64)
    start, g = 0, 0
    while start < n:
        lead = sorted_score[start]
        end = int(np.searchsorted(-sorted_score, -(lead - abs(lead) * tie), side="right"))
        group[start:end] = g
        start, g = max(end, start + 1), g + 1
    keys = plainness(batch.take(descending))
    room = np.zeros(n, dtype=bool) if tight is None else tight[descending]
    return descending[np.lexsort((*reversed(keys), room, group))]


@define
class TopK:
    """The first ``k`` of :func:`rank_order` over everything added, exactly, without keeping everything.

    A strategy is dropped once k others must come before it wherever the groups end up: k scores beat it by more
    than the tie, or k strategies score at least as much and are plainer.
    """

    k: int
    tie: float = TIE
    batch: StrategyBatch = field(default=_EMPTY)
    score: FloatArray = field(factory=lambda: np.zeros(0))
    tight: NDArray[np.bool_] = field(factory=lambda: np.zeros(0, dtype=bool))
    limit: int = _POOL
    """Pool size at which the plainness argument is applied, too."""

    def add(self, batch: StrategyBatch, score: FloatArray, tight: NDArray[np.bool_] | None = None) -> None:
        """Offer S strategies with their scores; ``tight`` marks those that leave little memory."""
        floor = self._floor()
        good = score >= floor
        if not good.any():
            return
        self.batch = StrategyBatch.concat([self.batch, batch.take(good)])
        self.score = np.concatenate([self.score, score[good]])
        self.tight = np.concatenate([self.tight, np.zeros(int(good.sum()), dtype=bool) if tight is None else tight[good]])
        keep = self.score >= self._floor()
        self._keep(keep)
        if len(self.batch) > self.limit:
            self._keep(self._skyband())
            self.limit = max(_POOL, 2 * len(self.batch))

    def ranked(self) -> tuple[StrategyBatch, FloatArray]:
        """Up to k strategies, best first, and their scores."""
        order = rank_order(self.batch, self.score, tight=self.tight, tie=self.tie)[: self.k]
        return self.batch.take(order), self.score[order]

    def _floor(self) -> float:
        """Below this, k strategies are better by more than a tie (two ties, so that rounding cannot matter)."""
        if len(self.score) < self.k:
            return -np.inf
        kth = float(np.partition(self.score, -self.k)[-self.k])
        return kth - 2 * self.tie * abs(kth)

    def _keep(self, mask: NDArray[np.bool_]) -> None:
        if not mask.all():
            self.batch, self.score, self.tight = self.batch.take(mask), self.score[mask], self.tight[mask]

    def _skyband(self) -> NDArray[np.bool_]:
        """Drops what k plainer strategies with at least its score beat, walking from the plainest on."""
        order = np.lexsort((-self.score, *reversed(plainness(self.batch)), self.tight))
        best = np.full(self.k, -np.inf)  # the k best scores so far, ascending
        mask = np.ones(len(order), dtype=bool)
        for i in order:
            s = self.score[i]
            if s <= best[0]:
                mask[i] = False
            else:
                at = int(np.searchsorted(best, s))
                best[: at - 1] = best[1:at]
                best[at - 1] = s
        return mask


@define
class ParetoFront:
    """Strategies that no other beats in both score and margin; of equals the plainest stays."""

    batch: StrategyBatch = field(default=_EMPTY)
    score: FloatArray = field(factory=lambda: np.zeros(0))
    """Descending."""
    margin: FloatArray = field(factory=lambda: np.zeros(0))
    """Ascending, since the front is sorted by score."""

    def add(self, batch: StrategyBatch, score: FloatArray, margin: FloatArray) -> None:
        """Offer S strategies. Scores and margins are larger-is-better."""
        candidates = np.flatnonzero(self._undominated(score, margin))
        if not len(candidates):
            return
        both = StrategyBatch.concat([self.batch, batch.take(candidates)])
        s, m = np.concatenate([self.score, score[candidates]]), np.concatenate([self.margin, margin[candidates]])
        order = np.lexsort((*reversed(plainness(both)), -m, -s))
        m_sorted = m[order]
        before = np.concatenate([[-np.inf], np.maximum.accumulate(m_sorted)[:-1]])
        order = order[m_sorted > before]
        self.batch, self.score, self.margin = both.take(order), s[order], m[order]

    def thinned(self, n: int) -> StrategyBatch:
        """At most ``n`` of the front, spread evenly over its margins, both ends included; best score first."""
        size = len(self.batch)
        if size <= n:
            return self.batch
        targets = np.linspace(self.margin[0], self.margin[-1], n)
        pick = np.unique(np.clip(np.searchsorted(self.margin, targets), 0, size - 1))
        return self.batch.take(pick)

    def _undominated(self, score: FloatArray, margin: FloatArray) -> NDArray[np.bool_]:
        """Where no member has at least the score and more margin (equals stay, for the plainer to win)."""
        if not len(self.score):
            return np.ones(len(score), dtype=bool)
        at_least = np.searchsorted(-self.score, -score, side="right")  # members with score >= this one
        reached = np.concatenate([[-np.inf], self.margin])[at_least]
        strictly = np.searchsorted(-self.score, -score, side="left")  # members with a greater score
        above = np.concatenate([[-np.inf], self.margin])[strictly]
        return (margin >= reached) & (margin > above)


@define
class NearestMiss:
    """The legal strategy that exceeds its limits by least; of equals the better score, then the plainer."""

    strategy: Strategy | None = None
    excess: float = np.inf
    """How far it exceeds its limits, by the measure of whoever adds; smaller is nearer."""
    score: float = -np.inf

    def add(self, batch: StrategyBatch, excess: FloatArray, score: FloatArray) -> None:
        """Offer S strategies that do not fit."""
        if not len(batch):
            return
        low = float(excess.min())
        if low > self.excess:
            return
        at = np.flatnonzero(excess == low)
        at = at[score[at] == score[at].max()]
        i = int(at[0]) if len(at) == 1 else int(at[np.lexsort(tuple(reversed(plainness(batch.take(at)))))[0]])
        if (low, -float(score[i])) < (self.excess, -self.score):
            self.strategy, self.excess, self.score = batch[i], low, float(score[i])
