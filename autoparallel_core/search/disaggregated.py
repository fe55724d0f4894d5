"""Prefill and decode pools of different layouts, matched in rate.

Every instance layout that the engine allows is priced for both roles; the counts of instances follow from the rates.
Axis legend: P prefill layouts, D decode layouts at a batch, M counts of decode instances.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_disagg import (
    BUSIEST,
    busy_at,
    decode_instances,
    prefill_instances,
    slots,
    transfer_s,
    waiting_s,
)
from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_load import Demand
from autoparallel_core.cost.serving_memory import serving_memory
from autoparallel_core.errors import SpecError
from autoparallel_core.search.calibrated import scaled_seconds
from autoparallel_core.search.rules import rules_for
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.calibration import Calibration
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]


@frozen
class Pool:
    """Equal instances with one role. ``strategy.dp`` counts them."""

    strategy: Strategy
    gpu: str
    gpus: int
    batch_per_instance: float
    """Sequences that decode together; prompts of one step for a prefill pool."""
    requests_per_s: float
    """What the pool could serve by itself."""


@frozen
class Disaggregated:
    """One deployment in two pools."""

    prefill: Pool
    decode: Pool
    ttft_s: float
    """Waiting, prefill, moving the cache, and the fixed time to first token."""
    tpot_s: float
    transfer_s: float
    requests_per_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    """Over all GPUs of the clusters, idle ones included."""
    bound: str
    """What limits the rate: ``prefill``, ``decode``, ``request rate``, ``TTFT limit`` or ``requests in flight``."""

    @property
    def gpus(self) -> int:
        return self.prefill.gpus + self.decode.gpus


def search_disaggregated(
    problem: Problem, host: Host, *, decode: Problem | None = None, top: int = 5
) -> tuple[Disaggregated, ...]:  # fmt: skip
    """The best deployments in two pools, by the workload's goal and within its limits; empty when none keeps them.

    Args:
        problem: the question; its cluster is shared by both pools, or the prefill pool's alone.
        host: plugins.
        decode: the same question on the decode pool's own cluster, which may have other GPUs.
        top: deployments to return, best first, at most one per pair of layouts.

    Raises:
        SpecError: the two problems ask different things.
    """
    if decode is not None and decode.workload != problem.workload:
        raise SpecError("the prefill and the decode pool must serve the same workload")
    senders, receivers = _prefill_side(problem, host), _decode_side(decode or problem, host)
    found: list[tuple[float, Disaggregated]] = []
    for i in range(len(senders.batch)):
        for j in range(len(receivers.batch)):
            best = _matched(problem, decode, senders, i, receivers, j)
            if best is not None:
                found.append(best)
    found.sort(key=lambda x: (-x[0], x[1].gpus, x[1].ttft_s))
    out: dict[tuple[str, str], Disaggregated] = {}
    for _, d in found:
        pair = str(_instance(d.prefill.strategy)), str(_instance(d.decode.strategy))
        out.setdefault(pair, d)
        if len(out) == top:
            break
    return tuple(out.values())


@frozen(eq=False)
class _Side:
    """Layouts of one role that are worth pairing."""

    hw: ServingHardware
    batch: StrategyBatch
    gpus: Array
    latency_s: Array
    """Prefill: a prompt alone. Decode: TPOT."""
    service_s: Array
    """Seconds of an instance per request."""
    sequences: Array
    cache_bytes: Array
    """Per GPU and prompt."""


def _layouts(problem: Problem, host: Host) -> StrategyBatch:
    """Distinct instances of the engine's space, one of each."""
    free = evolve(problem, workload=evolve(problem.inference, request_rate_per_s=None))  # instances are counted below
    space, rules = host.search_space(free) or Space(), rules_for(free, host)
    batch = StrategyBatch.concat(list(enumerate_space(free, space, rules)))
    one = batch.replace(dp=np.ones(len(batch), dtype=np.int64))
    return one.unique(("tp", "pp", "ep", "etp", "attn_dp"))[0]


def _prefill_side(problem: Problem, host: Host) -> _Side:
    batch = _layouts(problem, host)
    memory = serving_memory(problem, batch, host)
    keep = memory.concurrency_at(float(problem.inference.isl)) >= 1
    hw, cache = ServingHardware(problem), memory.sequence_bytes(float(problem.inference.isl))[keep]
    batch = batch.take(keep)
    p = prefill_instances(hw, batch, Demand.of(problem, len(batch)))
    factors = problem.calibration or Calibration()
    latency, service = p.latency_s * factors.first_token, p.service_s * factors.prefill * factors.scale
    gpus = (batch.tp * batch.attn_dp * batch.pp).astype(np.float64)
    best = _undominated(latency, service * gpus, gpus)
    return _Side(hw, batch.take(best), gpus[best], latency[best], service[best], np.ones(best.sum()), cache[best])


def _decode_side(problem: Problem, host: Host) -> _Side:
    layouts = _layouts(problem, host)
    memory = serving_memory(problem, layouts, host)
    hw = ServingHardware(problem)
    most = slots(hw, memory, layouts)
    cache = memory.sequence_bytes(float(problem.inference.isl))
    rows, sequences = [], []
    for i, m in enumerate(most):
        loads = [float(2**k) for k in range(int(np.log2(max(m, 1.0))) + 1) if 2**k <= m]
        loads += [float(m)] if m >= 1 and m not in loads else []
        rows += [i] * len(loads)
        sequences += loads
    index, held = np.array(rows, dtype=np.int64), np.array(sequences)
    batch = layouts.take(index)
    factors = problem.calibration
    scaled = dict if factors is None else partial(scaled_seconds, factors=factors)
    d = decode_instances(hw, batch, Demand.of(problem, len(batch)), held, scaled)
    gpus = (batch.tp * batch.attn_dp * batch.pp).astype(np.float64)
    keep = np.ones(len(batch), dtype=bool)
    if (limit := problem.inference.tpot_limit_s) is not None:
        keep &= d.tpot_s <= limit
    service = 1.0 / d.requests_per_s
    best = np.flatnonzero(keep)[_undominated(d.tpot_s[keep], (service * gpus)[keep], gpus[keep])]
    return _Side(hw, batch.take(best), gpus[best], d.tpot_s[best], service[best], held[best], cache[index][best])


def _undominated(*smaller_is_better: Array) -> NDArray[np.bool_]:
    """Rows that no other row beats in one figure without losing in another; of equals the first."""
    figures = np.stack(smaller_is_better, axis=1)
    keep = np.ones(len(figures), dtype=bool)
    for i, row in enumerate(figures):
        no_worse = np.all(figures <= row, axis=1)
        better = np.any(figures < row, axis=1) | (np.arange(len(figures)) < i)
        keep[i] = not np.any(no_worse & better & keep)
    return keep


def _matched(
    problem: Problem, other: Problem | None, p: _Side, i: int, d: _Side, j: int
) -> tuple[float, Disaggregated] | None:  # fmt: skip
    """The best counts of instances of one pair of layouts, with its score; None when nothing fits or keeps the limits."""
    work = problem.inference
    total = float(problem.cluster.n_gpus)
    here = total if other is None else float(other.cluster.n_gpus)
    decoders = np.arange(1.0, here // d.gpus[j] + 1)
    room = total - decoders * d.gpus[j] if other is None else np.full(len(decoders), total)
    prefillers = np.floor(room / p.gpus[i])
    decoders, prefillers = decoders[prefillers >= 1], prefillers[prefillers >= 1]
    if not len(decoders):
        return None
    able_d = decoders / d.service_s[j]
    asked = work.request_rate_per_s if work.paced and work.request_rate_per_s else np.inf
    # no more prefill instances than the decode pool, or the rate that is asked for, can follow
    prefillers = np.clip(np.ceil(np.minimum(able_d, asked) * p.service_s[i] / BUSIEST - 1e-9), 1.0, prefillers)
    able_p = BUSIEST * prefillers / p.service_s[i]
    used = prefillers * p.gpus[i] + decoders * d.gpus[j]
    moved = _moving_s(problem, other, p, i, d, j, int(used.max()))
    service, tpot = p.service_s[i] / prefillers, float(d.latency_s[j])
    alone = p.latency_s[i] + moved + problem.constant("serving_ttft_offset_s")

    rate, bound = np.minimum(able_p, able_d), np.where(able_p < able_d, "prefill", "decode").astype(object)

    def at_most(limit: Array | float, why: str) -> None:
        nonlocal rate
        bound[limit < rate] = why
        rate = np.minimum(rate, limit)

    at_most(asked, "request rate")
    if work.ttft_limit_s is not None:
        busy = busy_at(service, np.maximum(work.ttft_limit_s - alone, 0.0))
        at_most(busy / service, "TTFT limit")
    if (in_flight := work.concurrency or (1 if work.goal == "latency" and not work.paced else None)) is not None:
        first = waiting_s(service, rate * service) + alone
        at_most(in_flight / (first + tpot * (work.osl - 1)), "requests in flight")
    ttft = waiting_s(service, rate * service) + alone
    ok = rate > 0
    if work.ttft_limit_s is not None:
        ok &= ttft <= work.ttft_limit_s * (1 + 1e-9)
    if work.request_rate_per_s is not None:
        ok &= rate >= work.request_rate_per_s * (1 - 1e-9)
    if not ok.any():
        return None
    everything = total if other is None else total + here
    per_gpu = rate * work.osl / (used if work.goal == "cost" else everything)
    score = np.where(ok, -(ttft + tpot * (work.osl - 1)) if work.goal == "latency" else per_gpu, -np.inf)
    k = int(np.argmax(score))
    x, y = int(prefillers[k]), int(decoders[k])
    prefill = Pool(
        _counted(p.batch[i], x), problem.cluster.gpu.name, int(x * p.gpus[i]), 1.0, float(able_p[k] / BUSIEST)
    )  # fmt: skip
    decoding = Pool(
        _counted(d.batch[j], y), (other or problem).cluster.gpu.name, int(y * d.gpus[j]), float(d.sequences[j]), float(able_d[k])
    )
    return float(score[k]), Disaggregated(
        prefill, decoding, float(ttft[k]), tpot, moved, float(rate[k]), float(rate[k] * work.osl),
        float(rate[k] * work.osl / everything), str(bound[k]),
    )  # fmt: skip


def _moving_s(problem: Problem, other: Problem | None, p: _Side, i: int, d: _Side, j: int, used: int) -> float:
    """Seconds that a prompt's cache is under way, over the slower of the pools' clusters."""
    clusters = (problem.cluster, (other or problem).cluster)
    slower = min(clusters, key=lambda c: c.tiers[-1].bytes_per_s)
    together = used if other is None else sum(c.n_gpus for c in clusters)
    return transfer_s(p.hw, float(p.cache_bytes[i]), float(d.cache_bytes[j]), slower, together)


def _counted(instance: Strategy, n: int) -> Strategy:
    return evolve(instance, dp=n)


def _instance(s: Strategy) -> Strategy:
    return _counted(s, 1)
