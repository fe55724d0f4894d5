"""Clusters of several kinds of GPU: one strategy for the pipeline, each stage on the kind that suits it.

Every stage has tp·cp·dp GPUs of one kind; the stage dynamic program takes kinds as submeshes and counts them
(:mod:`autoparallel_core.solve.stages` with one unit per stage). A strategy is priced once per kind, as if the whole
cluster were of it; a plan takes from each price the stages that live on the kind.

Axis legend: S strategies, K kinds, P stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import define, evolve, field
from numpy.typing import NDArray

from autoparallel_core.cost.stages import ends_in_layers, split_layers
from autoparallel_core.errors import SpecError
from autoparallel_core.planners.reasons import with_reasons
from autoparallel_core.planners.two_level.abilities import Abilities, abilities_of
from autoparallel_core.planners.two_level.cells import Granularity
from autoparallel_core.planners.two_level.kind_chunks import interleaved_kind_cuts
from autoparallel_core.planners.two_level.kind_cuts import KindCut, best_kind_cuts, even_kind_cuts, relaxed_kinds_s
from autoparallel_core.planners.two_level.kind_plans import against_parts, kind_plan
from autoparallel_core.planners.two_level.stage_model import StageModel, stage_model
from autoparallel_core.search.result import Plan, SearchResult
from autoparallel_core.search.rules import apply_rules, rules_for
from autoparallel_core.search.space import Tally, enumerate_space, require_some
from autoparallel_core.search.variants import fold
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]
NAME = "two_level"
EXACT = 200
"""Strategies that get an exact cut."""
CHUNKS = 2
"""Chunks per rank that are tried."""
PRICED = 24
"""Cuts that are priced in full."""


def as_if_all(cluster: Cluster, kind: Cluster) -> Cluster:
    """The whole cluster, were it of one kind: its GPUs, its links, the others' slowest link beyond."""
    inner = tuple(t for t in kind.tiers if t.name != "scale-out")
    outer = next((t for t in kind.tiers if t.name == "scale-out"), cluster.tiers[-1])
    return evolve(kind, n_gpus=cluster.n_gpus, tiers=(*inner, evolve(outer, ranks=cluster.n_gpus)))


def kinds_search(
    problem: Problem, space: Space, *, host: Host | None, top: int = 10, progress: Callable[[int, int], None] | None = None,
    alone: Callable[[Problem], SearchResult] | None = None,
) -> SearchResult:  # fmt: skip
    """Plan training on GPUs of several kinds.

    Args:
        problem: its cluster has ``kinds``.
        space: the engine's axes.
        host: plugins.
        top: plans to return.
        progress: called with (strategies priced, in all).
        alone: searches a part of the cluster alone, for comparison; None leaves the comparison out.

    Raises:
        SpecError: the engine cuts stages evenly, or nothing divides.
    """
    started = time.perf_counter()
    able = abilities_of(problem)
    if not able.uneven:
        raise SpecError(
            f"{able.words[0]}; stages on GPUs of several kinds would wait for the slowest kind: "
            "name an engine (or version) that takes stages of different size"
        )
    parts = [problem.with_cluster(as_if_all(problem.cluster, k)) for k in problem.cluster.kinds]
    tally, pool = Tally(), _Pool(able, [k.n_gpus for k in problem.cluster.kinds])
    rules = [rules_for(p, host) if host is not None else () for p in parts]
    for batch in enumerate_space(parts[0], space, rules[0], tally=tally):
        fitting = batch.take(pool.divides(batch))
        for part, more in zip(parts[1:], rules[1:], strict=True):
            legal, refused = apply_rules(part, fitting, more)
            tally.refuse(refused)
            fitting = fitting.take(legal)
        pool.add([stage_model(p, fitting, host) for p in parts] if len(fitting) else [])
        if progress is not None:
            progress(pool.priced, tally.total)
    require_some(parts[0], space, tally)
    pool.cut()
    plans = [kind_plan(problem, models, i, cut, host) for models, i, cut in pool.best(PRICED)]
    even = [kind_plan(problem, models, i, cut, host) for models, i, cut in pool.even]
    fits = [p for p in plans if p.verdict != "does not fit"]
    base = min((p for p in even if p.verdict != "does not fit"), key=_step_s, default=None)
    ranked = with_reasons(problem, fold(sorted(fits, key=_step_s), top))
    if ranked:
        reasons = against_parts(problem, ranked[0], base, alone)
        ranked[0] = evolve(ranked[0], reasons=(*reasons, *ranked[0].reasons))
    return SearchResult(
        problem=problem,
        plans=tuple(ranked),
        enumerated=tally.enumerated,
        evaluated=pool.priced,
        fitting=len(fits),
        refused=dict(sorted(tally.refused.items(), key=lambda kv: (-kv[1], kv[0]))),
        nearest_miss=None,
        planner=NAME,
        elapsed_s=time.perf_counter() - started,
        assumptions=(*able.words, *pool.words(problem)),
        baseline=base,
    )


def _step_s(plan: Plan) -> float:
    return plan.cost.total_s


@define
class _Pool:
    """The most promising strategies met, and their cuts."""

    able: Abilities
    gpus: Sequence[int]
    """Of each kind."""
    models: list[list[StageModel]] = field(factory=list)
    relaxed: list[Array] = field(factory=list)
    cuts: list[tuple[list[StageModel], int, KindCut]] = field(factory=list)
    even: list[tuple[list[StageModel], int, KindCut]] = field(factory=list)
    priced: int = 0
    considered: int = 0

    def divides(self, batch: StrategyBatch) -> NDArray[np.bool_]:
        """Strategies whose stages divide every kind, with one stand-in for partial recomputes and few chunks per rank."""
        per_stage = batch.tp * batch.cp * batch.dp
        good: NDArray[np.bool_] = (batch.vpp <= CHUNKS) & (batch.recompute_layers == 0) & (batch.pp > 1)
        for n in self.gpus:
            good = good & (n % per_stage == 0)
        return good

    def stages(self, model: StageModel, i: int) -> tuple[int, ...]:
        """Stages of each kind."""
        b = model.batch
        per_stage = int(b.tp[i] * b.cp[i] * b.dp[i])
        return tuple(n // per_stage for n in self.gpus)

    def add(self, models: list[StageModel]) -> None:
        """Rank a batch by its relaxation and keep the best."""
        if not models:
            return
        self.priced += len(models[0].batch)
        shares = np.array([self.stages(models[0], i) for i in range(len(models[0].batch))])
        relaxed = relaxed_kinds_s(models, shares)
        self.considered += int(np.isfinite(relaxed).sum())
        for chunked in (False, True):
            rows = np.flatnonzero(np.isfinite(relaxed) & ((models[0].batch.vpp > 1) == chunked))
            keep = rows[np.argsort(relaxed[rows], kind="stable")[:EXACT]]
            if len(keep):
                self.models.append([m.take(keep) for m in models])
                self.relaxed.append(relaxed[keep])

    def cut(self) -> None:
        """Exact cuts in the order of the relaxation, until it is no better than the best cut; one chunk per rank first."""
        best = np.inf
        for chunked in (False, True):
            parts = [b for b, models in enumerate(self.models) if (models[0].batch.vpp[0] > 1) == chunked]
            order = sorted((float(r), b, i) for b in parts for i, r in enumerate(self.relaxed[b]))[:EXACT]
            for relaxed, b, i in order:
                if relaxed >= best * 1.03:
                    break
                models = self.models[b]
                stages = self.stages(models[0], i)
                cutter = interleaved_kind_cuts if chunked else best_kind_cuts
                found = cutter(models, i, stages, recompute=self._granularity(), below_s=best * 1.03)
                self.cuts += [(models, i, c) for c in found]
                best = min([best, *(c.step_s for c in found)])
                if not chunked:
                    self.even += [(models, i, c) for c in self._even(models, i, stages)]
        self.even = sorted(self.even, key=lambda c: c[2].step_s)[:4]

    def _even(self, models: list[StageModel], i: int, stages: tuple[int, ...]) -> tuple[KindCut, ...]:
        arch, soft = models[0].problem.arch, models[0].problem.software
        ends = ends_in_layers(arch)
        split = split_layers(arch.num_layers, sum(stages), ends=ends, embedding_as_layer=soft.embedding_as_layer)
        return even_kind_cuts(models, i, stages, split)

    def _granularity(self) -> Granularity:
        return "layer" if self.able.recompute == "layer" else "stage"

    def best(self, n: int) -> list[tuple[list[StageModel], int, KindCut]]:
        """The ``n`` best with one chunk per rank and with several: their steps are estimated differently."""
        ranked = sorted(self.cuts, key=lambda c: c[2].step_s)
        return [c for chunked in (False, True) for c in [x for x in ranked if (x[0][0].batch.vpp[x[1]] > 1) == chunked][:n]]

    def words(self, problem: Problem) -> tuple[str, ...]:
        kinds = " and ".join(f"{k.n_gpus:,} {k.gpu.name}" for k in problem.cluster.kinds)
        out = [
            f"{kinds}: every stage on one kind, all stages with the same degrees, at most {CHUNKS} chunks per rank",
            f"{self.considered:,} strategies divide all kinds and may fit; of the best {EXACT}, those in reach were cut exactly",
            "links between kinds run at the slower NIC; pipelines are simulated event by event",
        ]
        if self.able.recompute == "same":
            out.append("recompute is chosen by stage although the engine sets it once: take the largest number for all")
        return tuple(out)
