"""Speed for one user against throughput per GPU: every deployment at every load, and the best of them within limits.

A deployment is priced at 1, 2, 4, 5, 8 … requests per instance, growing by √2, up to what its cache holds, and at the most
that the workload's limits allow. The frontier holds
the points that no other beats in both figures; the goodput is the largest rate of requests that keeps the workload's
limits, which is what more GPUs, or a better layout, must raise.

Axis legend: S strategies at a load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_memory import ServingMemory, serving_memory
from autoparallel_core.search.evaluate_serving import evaluate_at
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.rules import rules_for
from autoparallel_core.search.serving_concurrency import concurrency_of, most_per_instance
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]


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
        return 1.0 / self.tpot_s if self.tpot_s > 0 else float("inf")


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
    problem = evolve(problem, workload=evolve(problem.inference, concurrency=None, request_rate_per_s=None, load="closed"))
    kept: list[Evaluation] = []
    evaluated = 0
    for loaded in _loaded(problem, host):
        evaluated += len(loaded)
        index = np.flatnonzero(_within_limits(problem, loaded))
        if len(index):
            user, gpu = _figures(loaded)
            best = index[np.argmax(loaded.serving["requests_per_s"][index])]
            kept.append(_rows(loaded, np.unique([*index[_front(user[index], gpu[index])], best])))
    if not kept:
        return Frontier((), None, evaluated)
    points = [_point(e, i) for e in kept for i in range(len(e))]
    user, gpu = (np.concatenate(x) for x in zip(*map(_figures, kept), strict=True))
    best = max(points, key=lambda p: p.requests_per_s)
    return Frontier(tuple(points[i] for i in _thinned(_front(user, gpu), user, most)), best, evaluated)


def _loaded(problem: Problem, host: Host) -> Iterator[Evaluation]:
    """The strategies that fit, at growing loads up to their cache's or the engine's limit."""
    space, rules = host.search_space(problem) or Space(), rules_for(problem, host)
    for batch in enumerate_space(problem, space, rules):
        memory = serving_memory(problem, batch, host)
        fit = np.flatnonzero(memory.fits)
        most = most_per_instance(problem, batch, memory)
        within = _most_within_limits(problem, batch, memory) if _limited(problem) else most
        rows, sequences = [], []
        for i in fit:
            loads = sorted({*np.floor(2.0 ** np.arange(0.0, np.log2(most[i]), 0.5)), float(most[i]), float(within[i])})
            rows += [i] * len(loads)
            sequences += loads
        index = np.array(rows, dtype=np.int64)
        loaded = batch.take(index)
        yield evaluate_at(problem, loaded, memory.take(index), np.array(sequences) * loaded.dp)


def _limited(problem: Problem) -> bool:
    return problem.inference.ttft_limit_s is not None or problem.inference.tpot_limit_s is not None


def _most_within_limits(problem: Problem, batch: StrategyBatch, memory: ServingMemory) -> Array:
    """Sequences per instance beyond which a limit on latency breaks; 1 where even that breaks it."""
    asked = problem.with_workload(evolve(problem.inference, goal="throughput"))
    return concurrency_of(ServingHardware(asked), batch, memory, asked.calibration) / batch.dp


def _rows(e: Evaluation, index: NDArray[np.int64]) -> Evaluation:
    """What a point needs of some rows."""
    return evolve(e, batch=e.batch.take(index), serving={k: v[index] for k, v in e.serving.items()})


def _figures(e: Evaluation) -> tuple[Array, Array]:
    """Output tokens per second of one user after the first, and per GPU of the cluster."""
    tpot = e.serving["tpot_s"]
    user = np.divide(1.0, tpot, out=np.full(len(tpot), np.inf), where=tpot > 0)
    return user, e.serving["output_tokens_per_s_per_gpu"]


def _within_limits(problem: Problem, e: Evaluation) -> NDArray[np.bool_]:
    w = problem.inference
    ok = np.ones(len(e), dtype=bool)
    for name, limit in (("ttft_s", w.ttft_limit_s), ("tpot_s", w.tpot_limit_s)):
        if limit is not None:
            ok &= e.serving[name] <= limit
    return ok


def _front(x: Array, y: Array) -> NDArray[np.int64]:
    """Indices of the points that none beats in both, by falling ``y``."""
    order = np.lexsort((-x, -y))
    best = np.maximum.accumulate(np.concatenate([[-np.inf], x[order]]))[:-1]
    return order[x[order] > best]


def _thinned(front: NDArray[np.int64], user: Array, most: int) -> NDArray[np.int64]:
    """At most ``most`` points, even in the logarithm of the speed per user, both ends included."""
    if len(front) <= most:
        return front
    speed = np.log(user[front])
    targets = np.linspace(speed[0], speed[-1], most)
    return front[np.unique(np.clip(np.searchsorted(speed, targets), 0, len(front) - 1))]


def _point(e: Evaluation, i: int) -> LoadPoint:
    s = {k: float(v[i]) for k, v in e.serving.items()}
    return LoadPoint(
        strategy=e.batch[i],
        concurrency=round(s["concurrency"]),
        gpus=int(s["instances"] * s["gpus_per_instance"]),
        ttft_s=s["ttft_s"],
        tpot_s=s["tpot_s"],
        requests_per_s=s["requests_per_s"],
        output_tokens_per_s=s["output_tokens_per_s"],
        output_tokens_per_s_per_gpu=s["output_tokens_per_s_per_gpu"],
    )
