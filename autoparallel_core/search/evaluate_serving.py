"""Deployments priced in batches: memory first, then the steady state that the cache allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_load import Demand, reserved_tokens, steady_state
from autoparallel_core.cost.serving_memory import ServingMemory, serving_memory
from autoparallel_core.search.calibrated import calibrated, ideal
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.serving_concurrency import concurrency_of
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]


def evaluate_inference(problem: Problem, batch: StrategyBatch, host: Host) -> Evaluation:
    """Deployments at the workload's concurrency, or at what stands in for it (:mod:`serving_concurrency`).

    A calibration of the problem is laid on the result.
    """
    memory = serving_memory(problem, batch, host)
    in_flight = concurrency_of(ServingHardware(problem), batch, memory, problem.calibration)
    return evaluate_at(problem, batch, memory, in_flight)


def evaluate_at(problem: Problem, batch: StrategyBatch, memory: ServingMemory, in_flight: Array) -> Evaluation:
    """Deployments with the given number of requests in flight over all instances, [S]; ``memory`` is theirs."""
    figures = _evaluation(problem, batch, memory, in_flight)
    if problem.calibration is None:
        return figures
    return calibrated(problem, figures, _evaluation(ideal(problem), batch, memory, in_flight))


def _evaluation(problem: Problem, batch: StrategyBatch, memory: ServingMemory, in_flight: Array) -> Evaluation:
    """Fits: the longest request (the asked one, or the engine's stated limit) has room in the KV cache of every instance.

    Tight: fewer of the asked length than asked for have room at once.
    """
    demand = evolve(Demand.of(problem, len(batch)), concurrency=in_flight)
    c = problem.constant
    state = steady_state(ServingHardware(problem), batch, memory.capacity_tokens(reserved_tokens(problem)), demand)
    gpus = (batch.tp * batch.attn_dp * batch.pp).astype(np.float64)
    dp = batch.dp.astype(np.float64)
    used = np.sum(list(memory.by_cause.values()), axis=0)
    longest = float(max(problem.inference.context_tokens, problem.inference.max_model_len or 0))
    need = memory.sequence_bytes(longest)
    reserved = used + np.maximum(memory.kv_cache_bytes, need)
    concurrency = problem.inference.concurrency or 0
    fits = memory.concurrency_at(longest) >= 1
    osl = max(problem.inference.osl, 1)
    serving = {
        "instances": dp,
        "concurrency": np.where(np.isfinite(in_flight), in_flight, state.batch_per_instance * dp),
        "gpus_per_instance": gpus,
        "batch_per_instance": state.batch_per_instance,
        "kv_tokens_per_instance": memory.kv_tokens_per_instance,
        "kv_bytes_per_gpu": memory.kv_cache_bytes,
        "weights_bytes_per_gpu": memory.weights_bytes,
        "activation_bytes_per_gpu": memory.activation_bytes,
        "non_torch_bytes_per_gpu": memory.non_torch_bytes,
        "cuda_graph_bytes_per_gpu": memory.cuda_graph_bytes,
        "prefill_s": state.prefill_s,
        "ttft_s": state.ttft_s,
        "ttft_low_s": state.ttft_s * c("serving_ttft_low"),
        "ttft_high_s": state.ttft_s * c("serving_ttft_high"),
        "tpot_s": state.tpot_s,
        "tpot_low_s": state.tpot_s * c("serving_tpot_low"),
        "tpot_high_s": state.tpot_s * c("serving_tpot_high"),
        "e2e_tpot_s": (state.ttft_s + state.tpot_s * (osl - 1)) / osl,
        "output_tokens_per_s": state.output_tokens_per_s,
        "output_tokens_per_s_per_gpu": state.output_tokens_per_s / problem.cluster.n_gpus,
        "requests_per_s": state.requests_per_s,
        "max_concurrency": memory.max_concurrency * dp,
        "deciding_stage": memory.deciding_stage.astype(np.float64),
        **{f"first_rank_{name}": v for name, v in memory.first_rank.items()},
    }
    return Evaluation(
        batch=batch,
        seconds=state.seconds,
        total_s=state.tpot_s,
        tokens_per_s_per_gpu=np.where(fits, serving["output_tokens_per_s_per_gpu"], 0.0),
        allocated_bytes=used + np.maximum(memory.kv_cache_bytes, 0.0),
        reserved_bytes=np.where(fits, np.minimum(reserved, memory.capacity_bytes), reserved),
        host_bytes_per_node=np.zeros(len(batch)),
        capacity_bytes=memory.capacity_bytes,
        fits=fits,
        tight=fits & (memory.max_concurrency * dp < concurrency),
        memory={**memory.by_cause, "kv_cache": np.maximum(memory.kv_cache_bytes, 0.0)},
        serving=serving,
        cache=memory,
    )
