"""One deployment in full."""

from __future__ import annotations

from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, ServingFigures, StageMemory
from autoparallel_core.spec.problem import Problem


def serving_plan_at(problem: Problem, evaluation: Evaluation, i: int) -> Plan:
    """The plan of row ``i``; the cost breakdown is one output token's."""
    strategy = evaluation.batch[i]
    s = {k: float(v[i]) for k, v in evaluation.serving.items()}
    stage = int(s["deciding_stage"])
    causes = {k: float(v[i]) for k, v in evaluation.memory.items() if v[i]}
    waiting = problem.inference.concurrency or 0
    notes: tuple[str, ...] = ()
    if evaluation.fits[i] and waiting > s["max_concurrency"]:
        held = f"{waiting} requests are asked for at once and the KV cache holds {s['max_concurrency']:.0f} of full length: "
        notes = (held + "the others wait (or are preempted), which the time to first token includes",)
    if problem.inference.assumed_in_flight is not None:
        n = s["concurrency"]
        notes = (f"{n:,.0f} request{'s' if round(n) != 1 else ''} in flight over all instances", *notes)
    longest, asked = problem.arch.longest_context, problem.inference.context_tokens
    if longest is not None and asked > longest:
        words = f"requests of {asked:,} tokens pass the {longest:,} positions that the model's config allows: "
        notes = (words + "engines refuse them unless rope scaling or their length limit is raised", *notes)
    if problem.inference.osl == 1:
        notes = (*notes, "a request of one output token has no time between tokens: its TPOT is zero")
    layers = problem.arch.num_layers // strategy.pp
    reserved = float(evaluation.reserved_bytes[i])
    # what does not fit has a cache too small for the longest request: the peak counts what it lacks
    lacking = {} if evaluation.fits[i] else {"missing_cache": reserved - sum(causes.values())}
    return Plan(
        strategy=strategy,
        cost=CostBreakdown({k: float(v[i]) for k, v in evaluation.seconds.items() if v[i]}),
        memory=MemoryBreakdown(
            stages=(StageMemory(stage, layers, causes, lacking),),
            capacity_bytes=evaluation.capacity_bytes,
            reserved_bytes=reserved,
        ),
        verdict="does not fit" if not evaluation.fits[i] else "tight" if evaluation.tight[i] else "fits",
        serving=ServingFigures(
            instances=int(s["instances"]),
            gpus_per_instance=int(s["gpus_per_instance"]),
            batch_per_instance=s["batch_per_instance"],
            kv_tokens_per_instance=int(s["kv_tokens_per_instance"]),
            kv_bytes_per_gpu=s["kv_bytes_per_gpu"],
            weights_bytes_per_gpu=s["weights_bytes_per_gpu"],
            prefill_s=s["prefill_s"],
            ttft_s=s["ttft_s"],
            ttft_interval_s=(s["ttft_low_s"], s["ttft_high_s"]),
            tpot_s=s["tpot_s"],
            tpot_interval_s=(s["tpot_low_s"], s["tpot_high_s"]),
            e2e_tpot_s=s["e2e_tpot_s"],
            output_tokens_per_s=s["output_tokens_per_s"],
            output_tokens_per_s_per_gpu=s["output_tokens_per_s_per_gpu"],
            requests_per_s=s["requests_per_s"],
            max_concurrency=int(s["max_concurrency"]),
            activation_bytes_per_gpu=s["activation_bytes_per_gpu"],
            non_torch_bytes_per_gpu=s["non_torch_bytes_per_gpu"],
            notes=notes,
        ),
    )
