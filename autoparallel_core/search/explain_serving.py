"""One deployment in full."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autoparallel_core.cost.serving_policy import scheduler_limits
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.price import price_per_million_tokens
from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, ServingFigures, StageMemory
from autoparallel_core.spec.arch import Layer
from autoparallel_core.spec.problem import Problem

_ANY_LENGTH = 1 << 39
"""A cache that holds requests of so many tokens holds any: all its layers have windows or states."""


_WORTH_SAYING = 1.2


def serving_plan_at(problem: Problem, evaluation: Evaluation, i: int) -> Plan:
    """The plan of row ``i``; the cost breakdown is one output token's."""
    strategy = evaluation.batch[i]
    s = {k: float(v[i]) for k, v in evaluation.serving.items()}
    stage = int(s["deciding_stage"])
    causes = {k: float(v[i]) for k, v in evaluation.memory.items() if v[i]}
    work, gpus = problem.inference, int(s["instances"] * s["gpus_per_instance"])
    running = s["batch_per_instance"] * s["instances"]

    def end_to_end(first_s: float, between_s: float) -> float:
        return (first_s + between_s * (work.osl - 1)) / work.osl

    def price(tokens: int) -> float | None:
        """Of a million tokens, ``tokens`` of them per request."""
        rate = s["requests_per_s"] * tokens
        return price_per_million_tokens(rate, gpus, work.gpu_hour_price) if work.gpu_hour_price and rate > 0 else None

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
            concurrency=s["concurrency"],
            waiting=max(s["concurrency"] - running, 0.0),
            kv_use=min(running / s["max_concurrency"], 1.0) if s["max_concurrency"] else 1.0,
            longest_request_tokens=_longest_request(evaluation, i, max(s["batch_per_instance"], 1.0)),
            longest_alone_tokens=_longest_request(evaluation, i, 1.0),
            e2e_tpot_interval_s=(end_to_end(s["ttft_low_s"], s["tpot_low_s"]), end_to_end(s["ttft_high_s"], s["tpot_high_s"])),
            price_per_million_output_tokens=price(work.osl),
            price_per_million_tokens=price(work.context_tokens),
            activation_bytes_per_gpu=s["activation_bytes_per_gpu"],
            non_torch_bytes_per_gpu=s["non_torch_bytes_per_gpu"],
            notes=(*_notes(problem, s, running), *_windows(problem, evaluation, i)) if evaluation.fits[i] else (),
        ),
    )


def _longest_request(evaluation: Evaluation, i: int, together: float) -> int | None:
    """Most tokens per request at which ``together`` of them have room on one instance."""
    if evaluation.cache is None:
        return None
    longest = int(evaluation.cache.take(np.array([i])).longest_context(together)[0])
    return longest if longest < _ANY_LENGTH else None


def _notes(problem: Problem, s: Mapping[str, float], running: float) -> tuple[str, ...]:
    """What to know about the figures, in sentences."""
    work, out = problem.inference, list[str]()
    longest, asked = problem.arch.longest_context, max(work.context_tokens, work.max_model_len or 0)
    if longest is not None and asked > longest:
        out.append(
            f"requests of {asked:,} tokens pass the {longest:,} positions that the model's config allows: "
            "engines refuse them unless rope scaling or their length limit is raised"
        )
    if work.assumed_in_flight is not None:
        n = s["concurrency"]
        out.append(f"{n:,.0f} request{'s' if round(n) != 1 else ''} in flight over all instances")
    if (work.concurrency or 0) > running + 0.5:
        out.append(_queue(problem, s, running))
    if work.osl == 1:
        out.append("a request of one output token has no time between tokens: its TPOT is zero")
    return tuple(out)


def _queue(problem: Problem, s: Mapping[str, float], running: float) -> str:
    """What happens to more requests than run together: they wait, and where the cache is over-committed some start again."""
    asked, held = problem.inference.concurrency or 0, s["max_concurrency"]
    text = f"of {asked:,} requests in flight {running:,.0f} run together and {asked - running:,.0f} wait for a place, "
    text += "which the time to first token includes: "
    limit = scheduler_limits(problem).max_num_seqs
    if running < held:
        text += f"the engine runs at most {limit:,} sequences together (--max-num-seqs), "
        return text + f"though its KV cache holds {held:,.0f}"
    text += f"the KV cache holds {held:,.0f} of full length"
    return text + ("; more start, and some are preempted as they grow" if running > held else "")


def _windows(problem: Problem, evaluation: Evaluation, i: int) -> list[str]:
    """What sliding windows save of a request's cache, or would save."""
    context = float(problem.inference.context_tokens)
    layers = [w for layer in problem.arch.layers if (w := _window(layer)) is not None and w < context]
    if evaluation.cache is None or not layers or evaluation.cache.window_pool_ratio is not None:  # a pool's size is fixed
        return []
    row = evaluation.cache.take(np.array([i]))
    state = float(row.state_bytes_per_sequence[0])
    whole = state + context * sum(float(b[0]) for b in row.window_bytes_per_token.values())
    kept = state + sum(float(b[0]) * (min(context, w) if w else context) for w, b in row.window_bytes_per_token.items())
    if kept <= 0 or whole / kept < _WORTH_SAYING:
        return []
    text = f"{len(layers)} of {problem.arch.num_layers} layers attend to a window of {max(layers):,} tokens"
    if row.windows_free:
        return [f"{text} and keep no more of a request: its KV cache is {whole / kept:.1f} times smaller for it"]
    return [f"{text}, and the engine keeps all tokens for them: a request's KV cache could be {whole / kept:.1f} times smaller"]


def _window(layer: Layer) -> int | None:
    return next((c.limit_tokens for block in layer.blocks for c in block.cache_per_token if c.limit_tokens), None)
