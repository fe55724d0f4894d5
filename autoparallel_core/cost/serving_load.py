"""From step times to what users measure: TTFT, TPOT and throughput of a load.

Closed loop at a concurrency: each of the B sequences in flight decodes in steps that now and then carry another
request's prefill; over one request's life every other request is prefilled once. Offline: the cache is kept full.
With pipeline stages the sequences in flight form one micro-batch per stage, and every micro-batch reads the weights.
Axis legend: S strategies.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_policy import policy_for, scheduler_limits
from autoparallel_core.cost.serving_step import Load, step_seconds
from autoparallel_core.cost.serving_weights import split_layers
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]


@frozen(eq=False)
class Demand:
    """What is asked of each of S deployments, [S] each."""

    isl: Array
    osl: Array
    concurrency: Array
    """Requests in flight over all instances; infinite: as many as fit."""
    cached: Array
    """Share of a prompt whose prefix is in the cache."""
    accepted: Array
    """Tokens per step and sequence."""
    offline: NDArray[np.bool_]
    requests: Array
    """Requests of an offline run; infinite: its steady state."""

    @classmethod
    def of(cls, problem: Problem, size: int) -> Demand:
        """The workload's, the same for every strategy."""
        w = problem.inference

        def full(x: float) -> Array:
            return np.full(size, float(x))

        return cls(
            full(w.isl), full(w.osl), full(w.concurrency or np.inf), full(w.prefix_hit_rate), full(max(w.accepted_length, 1.0)),
            np.full(size, w.load == "offline"), full(w.requests or np.inf),
        )  # fmt: skip


@frozen(eq=False)
class SteadyState:
    """Latency and throughput of one deployment, [S] each."""

    batch_per_instance: Array
    """Sequences that run together, on average; below one where there are fewer requests than instances."""
    prefill_s: Array
    """One prompt alone."""
    decode_s: Array
    """Between two tokens of a sequence when no prompt interferes, before accepted drafts are counted."""
    ttft_s: Array
    tpot_s: Array
    """Zero where a request has one output token, so no time between two."""
    output_tokens_per_s: Array
    """Over all instances."""
    requests_per_s: Array
    """Closed loop: requests per second times end-to-end seconds is the number of requests in flight, those that wait included."""
    seconds: dict[str, Array]
    """One output token of a sequence, by cause; sums to TPOT."""


def steady_state(
    hw: ServingHardware, batch: StrategyBatch, kv_capacity_tokens: Array, demand: Demand | None = None
) -> SteadyState:
    """``kv_capacity_tokens`` is per instance, [S]."""
    problem = hw.problem
    c = problem.constant
    d = demand or Demand.of(problem, len(batch))
    dp, ranks, pp = (batch.columns[n].astype(np.float64) for n in ("dp", "attn_dp", "pp"))
    in_flight, wanted = _in_flight(problem, d, dp, ranks, kv_capacity_tokens)
    requests, wave = d.requests / dp, c("serving_first_wave")
    rest = np.where(d.offline, _last_batch(requests, in_flight), in_flight)
    # an instance that is idle part of the time steps for one sequence when it works
    together = np.maximum(in_flight, 1.0)
    share, rest_share = together / ranks, np.maximum(rest, 1.0) / ranks
    micro, rest_micro = (np.clip(x, 1.0, pp) for x in (share, rest_share))
    steps = _steps(hw, batch, d, share / micro, rest_share / rest_micro, share)
    cycle, uneven = cycle_s(hw, batch, steps.decode, micro, share / micro)
    last, _ = cycle_s(hw, batch, steps.rest, rest_micro, rest_share / rest_micro)
    prefill_s, busy = total_s(steps.prompt), steps.marginal / pp * uneven
    interference = np.where(d.offline, share, c("serving_interference") * (1 - wave / 2) * np.maximum(share - 1.0, 0.0))
    drained = np.where(d.offline, _mean_over_waves(requests / in_flight, cycle, last), cycle)
    tpot = drained / d.accepted + interference * busy / d.osl
    # steps that decode others: none for a lone request, and no more than a request decodes
    steps_waited = np.minimum(c("serving_ttft_steps") + np.where(ranks > 1, c("serving_attention_dp_steps"), 0.0), d.osl - 1)
    waited = (together - 1) / together * steps_waited * cycle
    ttft = prefill_s + wave * (share + 1) / 2 * busy + waited + c("serving_ttft_offset_s")
    ttft = ttft + np.where(d.offline, 0.0, interference * busy / d.osl)
    life = np.where(d.offline, tpot * d.osl, ttft + tpot * (d.osl - 1))
    ttft = ttft + np.where(d.offline, 0.0, np.maximum(wanted / in_flight - 1.0, 0.0) * life)
    output = in_flight * d.osl / life * dp
    seconds = {k: v / d.accepted for k, v in steps.decode.items()}
    seconds["pipeline"] = (cycle - total_s(steps.decode)) / d.accepted
    seconds["draining"] = (drained - cycle) / d.accepted
    seconds["prefill_interference"] = interference * busy / d.osl
    decodes = d.osl > 1
    seconds = {k: np.where(decodes, v, 0.0) for k, v in seconds.items()}
    return SteadyState(
        batch_per_instance=in_flight, prefill_s=prefill_s, decode_s=cycle, ttft_s=ttft,
        tpot_s=np.where(decodes, tpot, 0.0), output_tokens_per_s=output,
        requests_per_s=output / d.osl, seconds=seconds,
    )  # fmt: skip


def reserved_tokens(problem: Problem) -> float:
    """Tokens for which engines keep room per running request, on average: its prompt and a part of its output."""
    work = problem.inference
    return float(work.isl + problem.constant("serving_reserved_output") * work.osl)


def _last_batch(requests: Array, in_flight: Array) -> Array:
    """Sequences of the last, partly filled batch of a finite run; a full batch where there is none."""
    left = np.where(np.isfinite(requests), requests, 0.0) % in_flight
    return np.where(left > 0, np.maximum(left, 1.0), in_flight)


def _mean_over_waves(waves: Array, cycle: Array, last: Array) -> Array:
    """Time between two tokens over the life of a run, per full batch: the last batch takes its steps for fewer sequences."""
    finite = np.isfinite(waves)
    n = np.where(finite, np.maximum(waves, 1.0), 1.0)
    return np.where(finite, (np.floor(n) * cycle + np.where(n % 1.0 > 0, last, 0.0)) / n, cycle)


def _in_flight(problem: Problem, d: Demand, dp: Array, ranks: Array, kv_capacity_tokens: Array) -> tuple[Array, Array]:
    """Sequences per instance that run together, and those that are wanted."""
    reserved = d.isl + problem.constant("serving_reserved_output") * d.osl  # of every row's own demand
    slots = np.maximum(np.floor(kv_capacity_tokens / reserved), 0.0)
    limit = float(scheduler_limits(problem).max_num_seqs) * ranks
    wanted = np.where(np.isfinite(d.concurrency), d.concurrency / dp, np.maximum(np.minimum(slots, limit), 1.0))
    wanted = np.minimum(wanted, d.requests / dp)
    return np.maximum(np.minimum(np.minimum(wanted, slots), limit), np.minimum(wanted, 1.0)), wanted


@frozen(eq=False)
class _Steps:
    decode: dict[str, Array]
    """A decode step of the steady batch, by cause."""
    rest: dict[str, Array]
    """The same of the last batch of a finite run."""
    prompt: dict[str, Array]
    """One prompt alone."""
    marginal: Array
    """What a prompt adds to the decode steps that carry it."""


def _steps(hw: ServingHardware, batch: StrategyBatch, d: Demand, decode: Array, rest: Array, share: Array) -> _Steps:
    """All steps in one call. Prompts that arrive within one decode step are processed together."""
    S = len(batch)
    prompt = np.maximum(d.isl * (1.0 - d.cached), 1.0)  # engines run at least the last token again
    cached = 1.0 - prompt / d.isl
    chunk = float(scheduler_limits(hw.problem).max_num_batched_tokens)
    pieces = np.maximum(np.ceil(prompt / chunk), 1.0)
    together = np.clip(share / d.osl, 1.0, np.maximum(chunk / np.maximum(prompt, 1.0), 1.0))
    zero, one = np.zeros(S), np.ones(S)
    mean, verified = d.isl + d.osl / 2, np.ceil(d.accepted)
    load = Load(
        decode=np.concatenate([decode, rest, zero, decode]),
        context=np.tile(mean, 4),
        verified=np.tile(verified, 4),
        prefill=np.concatenate([zero, zero, prompt / pieces, together * prompt / pieces]),
        prompt=np.tile(d.isl, 4),
        cached=np.tile(cached, 4),
        sampled=np.concatenate([decode * verified, rest * verified, one, decode * verified + together / pieces]),
    )
    seconds = step_seconds(hw, batch.take(np.tile(np.arange(S), 4)), load)
    parts = [{k: v[i * S : (i + 1) * S] for k, v in seconds.items()} for i in range(4)]
    for part in (parts[0], parts[1], parts[3]):
        part["draft"] = drafts_s(hw, part, verified)
    parts[2]["draft"] = zero
    alone = {k: v * pieces for k, v in parts[2].items()}
    marginal = np.maximum(total_s(parts[3]) - total_s(parts[0]), 0.0) * pieces / together
    return _Steps(parts[0], parts[1], alone, marginal)


def cycle_s(
    hw: ServingHardware, batch: StrategyBatch, decode: dict[str, Array], micro: Array, sequences: Array
) -> tuple[Array, Array]:
    """Seconds between two tokens of a sequence, and the slowest stage's share of a prompt's time over an even split.

    Every stage runs ``micro`` micro-batches a cycle and the slowest one sets the pace; a single micro-batch passes all
    stages one after another. A hop sends the hidden states of its ``sequences``.
    """
    problem = hw.problem
    whole = total_s(decode)
    cycle, uneven = whole.copy(), np.ones(len(batch))
    layers = float(problem.arch.num_layers)
    for pp in np.unique(batch.pp[batch.pp > 1]):
        rows = batch.pp == pp
        sizes = np.array(split_layers(problem.arch.num_layers, int(pp), policy_for(problem).layer_split), dtype=np.float64)
        head, host = decode["head"][rows], decode["host"][rows]
        body = whole[rows] - head - host
        stages = body[:, None] * sizes / layers
        stages[:, -1] += head
        span = (batch.tp * batch.attn_dp * batch.pp)[rows].astype(np.float64)
        hop = hw.hop_s(sequences[rows] * problem.arch.hidden_size * 2.0, span)
        slowest = stages.max(axis=1) + host + hop
        waiting = 1.0 + problem.constant("serving_stage_wait") * (pp - 1.0)
        cycle[rows] = np.maximum(stages.sum(axis=1) + pp * (host + hop), micro[rows] * slowest * waiting)
        uneven[rows] = sizes.max() / layers * pp
    return cycle, uneven


def drafts_s(hw: ServingHardware, seconds: dict[str, Array], verified: Array) -> Array:
    """Each draft is one pass through a layer like the model's own (a prediction module, or a small draft model) and the head."""
    body = total_s(seconds) - seconds["head"] - seconds["host"]
    return np.asarray((verified - 1.0) * (body / hw.problem.arch.num_layers + seconds["head"]))


def total_s(seconds: dict[str, Array]) -> Array:
    return np.asarray(np.sum(list(seconds.values()), axis=0))
