"""From step times to what users measure: TTFT, TPOT and throughput of a load.

Closed loop at a concurrency: each of the B sequences in flight decodes in steps that now and then carry another
request's prefill; over one request's life every other request is prefilled once. Offline: the cache is kept full.
Axis legend: S strategies.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_step import Load, step_seconds
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]


@frozen(eq=False)
class SteadyState:
    """Latency and throughput of one deployment, [S] each."""

    batch_per_instance: Array
    prefill_s: Array
    decode_s: Array
    """One decode step at the steady batch."""
    ttft_s: Array
    tpot_s: Array
    output_tokens_per_s: Array
    """Over all instances."""
    requests_per_s: Array
    seconds: dict[str, Array]
    """One output token of a sequence, by cause; sums to TPOT."""


def steady_state(hw: ServingHardware, batch: StrategyBatch, kv_capacity_tokens: Array) -> SteadyState:
    """``kv_capacity_tokens`` is per instance, [S]."""
    problem, work = hw.problem, hw.problem.inference
    c = problem.constant
    f = {n: batch.columns[n].astype(np.float64) for n in ("dp", "attn_dp", "pp")}
    isl = work.isl * (1.0 - work.prefix_hit_rate)
    per_request = work.isl + work.osl / 2
    slots = np.maximum(np.floor(kv_capacity_tokens / per_request), 0.0)
    limit = float(work.max_num_seqs) * f["attn_dp"] if work.max_num_seqs else np.full(len(batch), np.inf)
    wanted = work.concurrency / f["dp"] if work.concurrency else np.minimum(slots, limit)
    in_flight = np.maximum(np.minimum(np.minimum(wanted, slots), limit), 1.0)
    per_rank = in_flight / f["attn_dp"] / f["pp"]
    decode = _step(hw, batch, decode=per_rank, prefill=np.zeros(len(batch)))
    own = _step(hw, batch, decode=np.zeros(len(batch)), prefill=np.full(len(batch), isl))
    mixed = _step(hw, batch, decode=per_rank, prefill=np.full(len(batch), isl))
    decode_s, prefill_s = _total(decode), _total(own)
    marginal = np.maximum(_total(mixed) - decode_s, 0.0)
    accepted = max(work.accepted_length, 1.0)
    wave = c("serving_first_wave")
    ranks = f["attn_dp"]
    if work.load == "offline":
        share = in_flight / ranks
        duration = work.osl / accepted * f["pp"] * decode_s / f["pp"] + share * marginal / f["pp"]
        tpot = decode_s / accepted
        output = in_flight * work.osl / duration
        ttft = prefill_s
    else:
        others = np.maximum(in_flight / ranks - 1.0, 0.0)
        tpot = decode_s / accepted + c("serving_interference") * (1 - wave / 2) * others * marginal / f["pp"] / work.osl
        ttft = (
            prefill_s
            + wave * (in_flight / ranks + 1) / 2 * marginal / f["pp"]
            + c("serving_ttft_steps") * decode_s
            + c("serving_ttft_offset_s")
        )
        ttft = ttft + np.where(ranks > 1, c("serving_attention_dp_steps") * decode_s, 0.0)
        life = ttft + tpot * (work.osl - 1)
        ttft = ttft + np.maximum(wanted / in_flight - 1.0, 0.0) * life
        output = in_flight * work.osl / life
    seconds = {k: v / accepted for k, v in decode.items()}
    seconds["prefill_interference"] = tpot - decode_s / accepted
    return SteadyState(
        batch_per_instance=in_flight,
        prefill_s=prefill_s,
        decode_s=decode_s,
        ttft_s=ttft,
        tpot_s=tpot,
        output_tokens_per_s=output * f["dp"],
        requests_per_s=output * f["dp"] / work.osl,
        seconds=seconds,
    )


def _step(hw: ServingHardware, batch: StrategyBatch, *, decode: Array, prefill: Array) -> dict[str, Array]:
    """A step with ``decode`` sequences at their mean context and ``prefill`` prompt tokens, in engine-sized chunks."""
    work = hw.problem.inference
    chunk = float(work.max_num_batched_tokens or hw.problem.constant("serving_chunk_tokens"))
    pieces = np.maximum(np.ceil(prefill / chunk), 1.0)
    load = Load(
        decode=decode,
        context=np.full(len(batch), work.isl + work.osl / 2),
        prefill=prefill / pieces,
        prefill_len=float(work.isl) if np.any(prefill > 0) else 0.0,
        sampled=np.maximum(decode, 1.0),
    )
    one = step_seconds(hw, batch, load)
    if np.all(pieces == 1.0):
        return one
    rest = step_seconds(hw, batch, Load(np.zeros(len(batch)), load.context, load.prefill, load.prefill_len, np.ones(len(batch))))
    return {k: v + (pieces - 1.0) * rest[k] for k, v in one.items()}


def _total(seconds: dict[str, Array]) -> Array:
    return np.asarray(np.sum(list(seconds.values()), axis=0))
