"""The exhaustive planner: every strategy of the space, priced in batches, ranked.

Nothing is sampled: what the engine's rules allow is evaluated. Memory stays bounded because only the running best,
the running Pareto front and the running nearest miss are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from autoparallel_core.errors import PluginContract
from autoparallel_core.planners.reasons import wanted_per_gpu, with_reasons
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.explain import plan_at
from autoparallel_core.search.rank import NearestMiss, ParetoFront, TopK
from autoparallel_core.search.result import Plan, SearchResult
from autoparallel_core.search.space import Tally, enumerate_space, require_some
from autoparallel_core.search.variants import SEARCHED, fold
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.rule import Rule

FloatArray = NDArray[np.float64]
Evaluate = Callable[[Problem, StrategyBatch, "Host | None"], Evaluation]

NAME = "grid"
PARETO_SHOWN = 16


def grid_search(
    problem: Problem,
    space: Space,
    rules: tuple[Rule, ...],
    *,
    host: Host | None = None,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
    first_fit: bool = False,
    whole_load: bool = False,
    price: Evaluate = evaluate,
    distinct: bool = True,
) -> SearchResult:
    """Enumerate, refuse, price, rank. ``distinct`` folds near-identical strategies into one (:mod:`variants`);
    ``whole_load`` drops deployments whose cache holds fewer requests at once than are asked for.

    Raises:
        SpecError: nothing divides (the message names a batch that would), or the GPU lacks what the workload needs.
        PluginContract: a plugin's rule or delta breaks its contract.
    """
    started = time.perf_counter()
    tally, best = Tally(), _Best(problem, top * SEARCHED if distinct else top, whole_load=whole_load)
    for batch in enumerate_space(problem, space, rules, tally=tally):
        best.add(price(problem, batch, host))
        if progress is not None:
            progress(best.evaluated, tally.total)
        if first_fit and best.fitting:
            break
    require_some(problem, space, tally)
    plans = _plans(problem, best.top.ranked()[0], host, price)
    if distinct:
        plans = fold(plans, top)
    miss: list[Plan] = []
    if not plans and best.miss.strategy is not None:
        miss = _plans(problem, StrategyBatch.of([best.miss.strategy]), host, price)
    return SearchResult(
        problem=problem,
        plans=tuple(with_reasons(problem, plans)),
        pareto=tuple(_plans(problem, best.front.thinned(PARETO_SHOWN), host, price)),
        enumerated=tally.enumerated,
        evaluated=best.evaluated,
        fitting=best.fitting,
        refused=dict(sorted({**tally.refused, **best.too_slow}.items(), key=lambda kv: (-kv[1], kv[0]))),
        nearest_miss=with_reasons(problem, miss)[0] if miss else None,
        planner=NAME,
        elapsed_s=time.perf_counter() - started,
        blame=dict(best.blame),
    )


@define
class _Best:
    """Everything kept of the batches priced so far."""

    problem: Problem
    k: int
    whole_load: bool = False
    top: TopK = field(init=False)
    front: ParetoFront = field(factory=ParetoFront)
    miss: NearestMiss = field(factory=NearestMiss)
    evaluated: int = 0
    fitting: int = 0
    too_slow: dict[str, int] = field(factory=dict)
    """Strategies that fit but exceed a latency limit of the workload, by the limit's name."""
    blame: dict[str, str] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.top = TopK(self.k)

    def add(self, e: Evaluation) -> None:
        score = _score(self.problem, e)
        if not np.isfinite(score[e.fits]).all():
            raise PluginContract(
                f"the evaluation of {e.batch[int(np.flatnonzero(e.fits & ~np.isfinite(score))[0])]} is not a number"
            )
        self.evaluated += len(e)
        self.blame.update(e.blame)
        good = self._within_limits(e)
        rows = np.flatnonzero(good)
        self.fitting += len(rows)
        if len(rows):
            fitting = e.batch.take(rows)
            self.top.add(fitting, score[rows], e.tight[rows])
            self.front.add(fitting, score[rows], _margin(self.problem, e)[rows])
        elif not self.fitting:
            out = np.flatnonzero(~e.fits)
            self.miss.add(e.batch.take(out), _excess(self.problem, e)[out], score[out])

    def _within_limits(self, e: Evaluation) -> NDArray[np.bool_]:
        """What fits, less what exceeds the workload's latency limits (counted like a rule's refusals)."""
        good: NDArray[np.bool_] = e.fits
        if self.problem.mode == "training":
            return good
        w = self.problem.inference
        out = {f"{n.removesuffix('_s').upper()} limit": e.serving[n] > limit for n, limit in
               (("ttft_s", w.ttft_limit_s), ("tpot_s", w.tpot_limit_s)) if limit is not None}  # fmt: skip
        if w.request_rate_per_s is not None:
            out["request rate"] = e.serving["requests_per_s"] < w.request_rate_per_s
        if self.whole_load:
            out["requests in flight"] = e.tight
        for title, broken in out.items():
            if n := int(np.count_nonzero(good & broken)):
                self.too_slow[title] = self.too_slow.get(title, 0) + n
            good = good & ~broken
        return good


def _score(problem: Problem, e: Evaluation) -> FloatArray:
    """What is ranked, larger is better.

    Throughput per GPU of the cluster, idle ones included (instances need not use them all); for the goal
    ``latency`` the negative end-to-end seconds of one request, for ``cost`` the throughput per GPU in use that is asked for.
    """
    if problem.mode == "training":
        return e.tokens_per_s_per_gpu
    work, s = problem.inference, e.serving
    if work.goal == "latency":
        return -np.asarray(s["ttft_s"] + (work.osl - 1) * s["tpot_s"])
    if work.goal == "cost":
        used = e.batch.tp * e.batch.attn_dp * e.batch.pp * e.batch.dp
        return wanted_per_gpu(problem, e.tokens_per_s_per_gpu * problem.cluster.n_gpus, used)
    return e.tokens_per_s_per_gpu


def _margin(problem: Problem, e: Evaluation) -> FloatArray:
    """Room to spare: free bytes per GPU; in serving, where the cache takes all of them, requests that it holds."""
    if problem.mode == "inference":
        return np.asarray(e.serving["max_concurrency"], dtype=np.float64)
    return e.capacity_bytes - e.reserved_bytes


def _excess(problem: Problem, e: Evaluation) -> FloatArray:
    """What is missing of GPU and of host memory, each as a share of what there is, summed.

    A sum, so that a strategy that lacks only one of them comes before one that lacks as much of it and the other, too.
    """
    gpu = e.reserved_bytes / e.capacity_bytes - 1
    if problem.mode == "inference":  # below 1 where what is left over is no room for one request
        return np.asarray(gpu)
    host = e.host_bytes_per_node / problem.cluster.host_memory_bytes_per_node - 1
    return np.asarray(np.maximum(gpu, 0.0) + np.maximum(host, 0.0))


def _plans(problem: Problem, batch: StrategyBatch, host: Host | None, price: Evaluate) -> list[Plan]:
    if not len(batch):
        return []
    e = price(problem, batch, host)
    return [plan_at(problem, e, i) for i in range(len(batch))]
