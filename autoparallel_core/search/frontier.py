"""Speed for one user against throughput per GPU: every deployment at every load, and the best of them within limits.

A deployment is priced at 1, 2, 4, 5, 8 … requests per instance, growing by √2, up to what its cache holds. The frontier holds
the points that no other beats in both figures; the goodput is the largest rate of requests that keeps the workload's
limits, which is what more GPUs, or a better layout, must raise.

Axis legend: S strategies at a load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_load import Demand, steady_state
from autoparallel_core.cost.serving_memory import serving_memory
from autoparallel_core.search.rules import rules_for
from autoparallel_core.search.serving_concurrency import most_per_instance
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]

SECONDS_PER_HOUR = 3600.0


@frozen
class LoadPoint:
    """One deployment at one load."""

    strategy: Strategy
    concurrency: int
    """Requests in flight over all instances."""
    gpus: int
    """GPUs in use."""
    ttft_s: float
    tpot_s: float
    requests_per_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    """Over all GPUs of the cluster, idle ones included."""

    @property
    def tokens_per_s_per_user(self) -> float:
        """Output tokens that one user sees per second after the first."""
        return 1.0 / self.tpot_s


@frozen
class Frontier:
    """``points`` by falling throughput per GPU and rising speed per user."""

    points: tuple[LoadPoint, ...]
    goodput: LoadPoint | None
    """The point of most requests per second among those within the workload's limits; None: none is."""
    evaluated: int = 0


def frontier(problem: Problem, host: Host, *, most: int = 24) -> Frontier:
    """The frontier of a serving problem, thinned to at most ``most`` points; its concurrency is not used.

    Raises:
        SpecError: the engine's space is empty, or the GPU lacks what the workload needs.
    """
    space, rules = host.search_space(problem) or Space(), rules_for(problem, host)
    problem = evolve(problem, workload=evolve(problem.inference, concurrency=None, load="closed"))
    kept: list[dict[str, Array]] = []
    batches: list[StrategyBatch] = []
    evaluated = 0
    for batch in enumerate_space(problem, space, rules):
        loaded, figures = _loads(problem, batch, host)
        evaluated += len(loaded)
        ok = _within_limits(problem, figures)
        index = np.flatnonzero(ok)
        if len(index):
            front = index[_front(figures["user"][index], figures["gpu"][index])]
            best = index[np.argmax(figures["requests_per_s"][index])]
            pick = np.unique([*front, best])
            batches.append(loaded.take(pick))
            kept.append({k: v[pick] for k, v in figures.items()})
    if not kept:
        return Frontier((), None, evaluated)
    strategies = StrategyBatch.concat(batches)
    figures = {k: np.concatenate([f[k] for f in kept]) for k in kept[0]}
    points = [_point(strategies[i], figures, i) for i in _thinned(_front(figures["user"], figures["gpu"]), figures, most)]
    best = int(np.argmax(figures["requests_per_s"]))
    return Frontier(tuple(points), _point(strategies[best], figures, best), evaluated)


def price_per_million_tokens(output_tokens_per_s: float, gpus: int, gpu_hour_price: float) -> float:
    """Price of a million output tokens at a price per GPU and hour; the GPUs in use are paid for."""
    return gpus * gpu_hour_price / SECONDS_PER_HOUR / output_tokens_per_s * 1e6


def _loads(problem: Problem, batch: StrategyBatch, host: Host) -> tuple[StrategyBatch, dict[str, Array]]:
    """The strategies that fit, at growing loads up to their cache's or the engine's limit."""
    memory = serving_memory(problem, batch, host)
    fit = np.flatnonzero(memory.fits)
    tokens = memory.kv_tokens_per_instance[fit]
    most = most_per_instance(problem, batch, memory)[fit]
    rows, sequences = [], []
    for i, m in enumerate(most):
        loads = sorted({*np.floor(2.0 ** np.arange(0.0, np.log2(m), 0.5)), float(m)})
        rows += [i] * len(loads)
        sequences += loads
    index = np.array(rows, dtype=np.int64)
    loaded, tokens = batch.take(fit[index]), tokens[index]
    demand = evolve(Demand.of(problem, len(loaded)), concurrency=np.array(sequences) * loaded.dp)
    s = steady_state(ServingHardware(problem), loaded, tokens, demand)
    used = (loaded.tp * loaded.attn_dp * loaded.pp * loaded.dp).astype(np.float64)
    return loaded, {
        "concurrency": demand.concurrency, "gpus": used, "ttft_s": s.ttft_s, "tpot_s": s.tpot_s,
        "requests_per_s": s.requests_per_s, "output": s.output_tokens_per_s, "user": 1.0 / s.tpot_s,
        "gpu": s.output_tokens_per_s / problem.cluster.n_gpus,
    }  # fmt: skip


def _within_limits(problem: Problem, figures: dict[str, Array]) -> NDArray[np.bool_]:
    w = problem.inference
    ok = np.ones(len(figures["ttft_s"]), dtype=bool)
    for name, limit in (("ttft_s", w.ttft_limit_s), ("tpot_s", w.tpot_limit_s)):
        if limit is not None:
            ok &= figures[name] <= limit
    return ok


def _front(x: Array, y: Array) -> NDArray[np.int64]:
    """Indices of the points that none beats in both, by falling ``y``."""
    order = np.lexsort((-x, -y))
    best = np.maximum.accumulate(np.concatenate([[-np.inf], x[order]]))[:-1]
    return order[x[order] > best]


def _thinned(front: NDArray[np.int64], figures: dict[str, Array], most: int) -> NDArray[np.int64]:
    """At most ``most`` points, even in the logarithm of the speed per user, both ends included."""
    if len(front) <= most:
        return front
    speed = np.log(figures["user"][front])
    targets = np.linspace(speed[0], speed[-1], most)
    return front[np.unique(np.clip(np.searchsorted(speed, targets), 0, len(front) - 1))]


def _point(strategy: Strategy, figures: dict[str, Array], i: int) -> LoadPoint:
    f = {k: float(v[i]) for k, v in figures.items()}
    return LoadPoint(
        strategy, round(f["concurrency"]), int(f["gpus"]), f["ttft_s"], f["tpot_s"], f["requests_per_s"], f["output"], f["gpu"]
    )
