"""Prefill and decode on pools of their own: what an instance of each does, and moving the cache between them.

A prefill instance processes prompts and nothing else; a decode instance never sees one. Between them the cache of a
prompt crosses the network once (Zhong et al., arXiv 2401.09670, section 4). Axis legend: S instances.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_load import Demand, cycle_s, drafts_s, reserved_tokens, total_s
from autoparallel_core.cost.serving_memory import ServingMemory
from autoparallel_core.cost.serving_policy import scheduler_limits
from autoparallel_core.cost.serving_step import Load, step_seconds
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]

Scaled = Callable[[dict[str, Array]], dict[str, Array]]

BUSIEST = 0.9
"""Share of its capacity that a prefill pool is run at most: beyond it, waiting grows without bound."""


@frozen(eq=False)
class PrefillInstances:
    """One instance each, [S]."""

    latency_s: Array
    """A prompt alone, through all stages."""
    service_s: Array
    """Between two prompts that leave a busy instance."""


@frozen(eq=False)
class DecodeInstances:
    """One instance each at its batch, [S]."""

    tpot_s: Array
    requests_per_s: Array


def prefill_instances(hw: ServingHardware, batch: StrategyBatch, demand: Demand) -> PrefillInstances:
    """Every attention rank works on prompts of its own; a step holds as many as the engine's token limit admits."""
    S = len(batch)
    prompt = np.maximum(demand.isl * (1.0 - demand.cached), 1.0)
    chunk = float(scheduler_limits(hw.problem).max_num_batched_tokens)
    pieces = np.ceil(prompt / chunk)
    together = np.maximum(np.floor(chunk / prompt), 1.0)
    zero, one = np.zeros(2 * S), np.ones(2 * S)
    load = Load(
        decode=zero, context=one, verified=one, prefill=np.concatenate([prompt, together * prompt]) / np.tile(pieces, 2),
        prompt=np.tile(demand.isl, 2), cached=np.tile(demand.cached, 2), sampled=np.concatenate([one[:S], together]),
    )  # fmt: skip
    seconds = total_s(step_seconds(hw, batch.take(np.tile(np.arange(S), 2)), load)) * np.tile(pieces, 2)
    ranks, pp = batch.attn_dp.astype(np.float64), batch.pp.astype(np.float64)
    layers = float(hw.problem.arch.num_layers)
    uneven = np.ceil(layers / pp) * pp / layers
    return PrefillInstances(seconds[:S], seconds[S:] * uneven / pp / together / ranks)


def decode_instances(
    hw: ServingHardware, batch: StrategyBatch, demand: Demand, sequences: Array, scaled: Scaled = dict
) -> DecodeInstances:
    """``sequences`` decode together on each instance; no prompt interferes. ``scaled`` corrects a step's seconds by cause."""
    S = len(batch)
    share = sequences / batch.attn_dp
    micro = np.clip(share, 1.0, batch.pp)
    verified = np.ceil(demand.accepted)
    load = Load(
        decode=share / micro, context=demand.isl + demand.osl / 2, verified=verified, prefill=np.zeros(S), prompt=demand.isl,
        cached=np.zeros(S), sampled=share / micro * verified,
    )  # fmt: skip
    seconds = scaled(step_seconds(hw, batch, load))
    seconds["draft"] = drafts_s(hw, seconds, verified)
    cycle, _ = cycle_s(hw, batch, seconds, micro, share / micro)
    tpot = cycle / demand.accepted
    return DecodeInstances(tpot, sequences / (demand.osl * tpot))


def slots(hw: ServingHardware, memory: ServingMemory, batch: StrategyBatch) -> Array:
    """Sequences that the cache and the engine's limit let one decode instance hold."""
    reserved = reserved_tokens(hw.problem)
    limit = float(scheduler_limits(hw.problem).max_num_seqs) * batch.attn_dp
    return np.asarray(np.minimum(np.floor(memory.capacity_tokens(reserved) / reserved), limit))


def transfer_s(hw: ServingHardware, sender_bytes: float, receiver_bytes: float, cluster: Cluster, n_gpus: int) -> float:
    """Moving one prompt's cache: the side with more bytes per GPU sets the pace, over the fabric where it joins both pools.

    Not overlapped with the prefill that fills the cache, which some engines do layer by layer.
    """
    c = hw.problem.constant
    inner, outer = cluster.tiers[0], cluster.tiers[-1]
    if n_gpus <= inner.ranks:
        rate, latency = inner.bytes_per_s, inner.latency_s
    else:
        rate, latency = outer.bytes_per_s * c("scale_out_efficiency"), max(outer.latency_s, c("scale_out_latency_s"))
    return max(sender_bytes, receiver_bytes) / rate + latency


def waiting_s(service_s: Array, busy: Array) -> Array:
    """Mean wait for a place at a server with constant service time and random arrivals (M/D/1: Pollaczek–Khinchine)."""
    return np.asarray(service_s * busy / (2.0 * (1.0 - np.minimum(busy, 0.999))))


def busy_at(service_s: Array, wait_s: Array) -> Array:
    """How busy a server may be for its mean wait to be no longer: the inverse of :func:`waiting_s`."""
    return np.asarray(2.0 * wait_s / (service_s + 2.0 * wait_s))
