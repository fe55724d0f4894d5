"""Why a plan is as fast as it is: sentences from its breakdowns and from the plan ranked after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from autoparallel_core.problem import unknown_version
from autoparallel_core.search.result import TIE, Plan
from autoparallel_core.spec.problem import Problem

Array = NDArray[np.float64]

WORK = frozenset({"gemm", "expert_gemm", "attention", "scan", "elementwise", "cast", "embedding", "loss"})
"""Causes that every strategy pays for; all others are the price of a strategy (exposed communication, bubble, …)."""

ONCE_PER_STEP = ("bubble", "dp_comm", "optimizer")
"""Causes that more micro-batches per step would spread over more tokens."""
ENOUGH = 4
"""Micro-batches per pipeline stage from which a batch is no longer small."""
WORTH_NAMING = 0.02
SELDOM = 10
"""Decode steps between two looks at new requests from which the wait for one is worth a note,"""
MUCH_OF_TTFT = 0.4
"""where it makes up this share of the time to first token."""
MUCH, SOME = 0.25, 0.1
"""Shares of the step: a bubble above the first is a small batch; so are few micro-batches with such causes above the second."""

_TITLES = {
    "all_reduce": "all-reduce",
    "all_to_all": "the exchange of tokens between experts",
    "bubble": "the pipeline bubble",
    "head": "the output layer",
    "layer": "layer overhead",
    "pipeline": "waiting for pipeline stages",
    "prefill_interference": "prefills in between",
    "cp_comm": "context-parallel exchange",
    "dp_comm": "gradient and parameter synchronisation",
    "ep_comm": "the exchange of tokens between experts",
    "fsdp_comm": "gathering sharded parameters",
    "host": "waiting for the host",
    "optimizer": "the optimizer step",
    "pp_p2p": "sends between pipeline stages",
    "recompute": "recomputation",
    "straggler": "stragglers",
    "tp_comm": "tensor-parallel communication",
    "gemm": "matrix products",
    "expert_gemm": "expert matrix products",
    "elementwise": "element-wise passes",
}
_MEMORY_TITLES = {
    "gathered": "gathered layers", "kv_cache": "KV cache", "non_torch": "memory outside of PyTorch",
    "optimizer": "optimizer state", "transient": "transient buffers",
}  # fmt: skip


def with_reasons(problem: Problem, plans: Sequence[Plan]) -> list[Plan]:
    """The same plans, each with its reasons; every plan but the last is compared with its successor."""
    out = []
    for i, plan in enumerate(plans):
        after = plans[i + 1] if i + 1 < len(plans) else None
        sentences = [exposed(plan), memory(problem, plan), stands_for(plan)]
        if after is not None:
            sentences.append(next_best(problem, plan, after))
        out.append(evolve(plan, reasons=(*plan.reasons, *(s for s in sentences if s))))
    return out


def stands_for(plan: Plan) -> str:
    """The near-identical strategies that were folded into this one; nothing when there are none."""
    if not plan.variants:
        return ""
    mine = set(plan.notation.split())
    changes = [
        " ".join(w for w in str(v).split() if w not in mine) or "without " + " ".join(mine - set(str(v).split()))
        for v in plan.variants
    ]
    shown = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
    return f"as fast within one percent: {shown}"


def exposed(plan: Plan) -> str:
    """The largest costs that are not the model's own arithmetic."""
    total = plan.cost.total_s
    costs = sorted(((s, c) for c, s in plan.cost.seconds.items() if c not in WORK and s > 0), reverse=True)
    if not costs or total <= 0:
        return "nothing but the model's own arithmetic takes time"
    named = [f"{title(c)} {s / total:.1%} ({_seconds(s)})" for s, c in costs[:2]]
    rest = sum(s for s, _ in costs) / total
    first = f"largest exposed cost: {named[0]}"
    return first + (f", then {named[1]}; {rest:.1%} in all" if len(named) > 1 else "")


def memory(problem: Problem, plan: Plan) -> str:
    """What fills the deciding stage, and what is left."""
    m = plan.memory
    stage = m.deciding
    parts = sorted(((b, c) for c, b in stage.bytes.items()), reverse=True)
    most = " and ".join(f"{_memory_title(c)} ({_gb(b)})" for b, c in parts[:2])
    where = f" on stage {stage.stage}" if len(m.stages) > 1 or plan.strategy.pp > 1 else ""
    host = ""
    offered = problem.cluster.host_memory_bytes_per_node
    if m.host_bytes_per_node > offered:
        host = f"; the host needs {_gb(m.host_bytes_per_node)} of {_gb(offered)} per node"
    if plan.serving is not None and plan.verdict != "does not fit":  # the cache takes what the engine grants it
        return f"memory{where} is held by {most} of {_gb(m.capacity_bytes)}"
    if m.margin_bytes >= 0:
        return f"memory{where} is held by {most}; {_gb(m.margin_bytes)} of {_gb(m.capacity_bytes)} stay free{host}"
    return (
        f"memory{where} needs {_gb(m.reserved_bytes)} of {_gb(m.capacity_bytes)}, {_gb(-m.margin_bytes)} too much: {most}{host}"
    )


def notes(problem: Problem, plan: Plan, ranked: Sequence[Plan] = ()) -> list[str]:
    """What to know about a plan before running it: a version nobody looked at, idle GPUs, a batch too small for the cluster,
    hardly any memory left. ``ranked``: the answer that the plan leads, which may hold one with room.
    """
    version = unknown_version(problem.engine, problem.engine_version)
    found = (version, idle(problem, plan), small_batch(plan), no_room(plan, ranked), seldom_looked(problem, plan))
    return [note for note in found if note]


def seldom_looked(problem: Problem, plan: Plan) -> str:
    """That the first token waits mostly for the engine to look at new requests, as the runs behind its constant did."""
    f, constant = plan.serving, problem.constants.get("serving_ttft_steps")
    if f is None or constant is None or constant.value < SELDOM:
        return ""
    steps = min(constant.value, problem.inference.osl - 1)
    step_s = f.tpot_s - plan.cost.seconds.get("prefill_interference", 0.0)
    together = max(f.batch_per_instance, 1.0)
    waited = (together - 1) / together * steps * step_s * problem.inference.accepted_length
    if waited < MUCH_OF_TTFT * f.ttft_s:
        return ""
    return (
        f"{waited / f.ttft_s:.0%} of TTFT are {constant.value:g} {constant.meaning}; where the engine looks more often, the "
        "first token comes sooner and more requests keep a limit on it. Prefill pools are priced without this wait"
    )


def no_room(plan: Plan, ranked: Sequence[Plan]) -> str:
    """That a training plan which leads an answer is tight, and the best below it that is not; else nothing."""
    if plan.training is None or plan.verdict != "tight" or not ranked:
        return ""
    m = plan.memory
    free = f"{_gb(m.margin_bytes)} of {_gb(m.capacity_bytes)}"
    text = f"#1 is tight ({free} stay free): measured runs of such plans both ran and failed"
    i = next((i for i, p in enumerate(ranked) if p.verdict == "fits"), None)
    if i is None:
        return f"{text}; none shown here leaves a tenth free (--top shows more)"
    other = ranked[i]
    slower = 1 - other.throughput / plan.throughput
    pace = "is as fast (within 1%)" if slower <= TIE else f"is {slower:.1%} slower"
    return f"{text}; #{i + 1} {other.notation} leaves {_gb(other.memory.margin_bytes)} and {pace}"


def idle(problem: Problem, plan: Plan) -> str:
    """Which GPUs of the cluster a plan leaves out; nothing when it takes all."""
    n, used = problem.cluster.n_gpus, plan.strategy.world
    if used >= n:
        return ""
    return f"{n - used:,} of the {n:,} GPUs stay idle, and figures per GPU count them"


def small_batch(plan: Plan) -> str:
    """That a larger batch would be faster, where what every step pays once is much of the step; else nothing."""
    f, total = plan.training, plan.cost.total_s
    if f is None or total <= 0:
        return ""
    s, m = plan.strategy, f.micro_batches
    causes = [*ONCE_PER_STEP, *(("tp_comm", "cp_comm") if m * s.mbs == 1 else ())]
    shares = {c: plan.cost.seconds.get(c, 0.0) / total for c in causes}
    few = m < ENOUGH * s.pp
    if shares["bubble"] <= MUCH and not (few and sum(shares.values()) > SOME):
        return ""
    where = f" on {s.pp} pipeline stages" if s.pp > 1 else " per GPU"
    main = sorted(((v, c) for c, v in shares.items() if v >= WORTH_NAMING), reverse=True)
    named = " and ".join(f"{title(c)} ({v:.1%} of the step)" for v, c in main[:2])
    more = f"{ENOUGH * s.pp * s.mbs * s.dp:,} sequences per step" if few else "more sequences per step"
    return f"the batch is small for this cluster: {m:,} micro-batch{'es' * (m > 1)}{where}; {more} would spread {named}"


def _tighter(plan: Plan, after: Plan) -> bool:
    return plan.verdict == "fits" and after.verdict == "tight"


def next_best(problem: Problem, plan: Plan, after: Plan) -> str:
    """How the plan ranked next differs, and by which cost it loses."""
    name = f"next best: {after.notation}"
    mine, other = speed(problem, plan), speed(problem, after)
    ratio = other / mine if mine else 1.0
    if ratio > 1 - TIE:
        return f"{name} is as fast (within {TIE:.0%}) and " + ("leaves less room" if _tighter(plan, after) else "less plain")
    before = plan_seconds(problem, plan)
    more, cause = largest_increase(before, plan_seconds(problem, after))
    total = sum(before.values())
    if not cause or total <= 0:
        return f"{name} is {1 - ratio:.1%} slower"
    unit = f"{more / total:.1%} more GPU time" if shares_gpus(problem, plan) else f"{_seconds(more)} more"
    why = f", mostly by {unit} for {title(cause)}"
    return f"{name} is {1 - ratio:.1%} slower{why}"


def shares_gpus(problem: Problem, plan: Plan) -> bool:
    """Whether plans are compared by what many requests share, not by how long one of them takes."""
    return plan.serving is not None and problem.mode == "inference" and problem.inference.goal != "latency"


def plan_seconds(problem: Problem, plan: Plan) -> dict[str, float]:
    """Seconds by cause in which plans can be compared.

    Deployments run at different loads, and a token takes longer where more requests share the GPUs: there every cause is GPU
    seconds per token.
    """
    f = plan.serving
    scale = f.gpus_per_instance / f.batch_per_instance if f is not None and shares_gpus(problem, plan) else 1.0
    return {c: s * scale for c, s in plan.cost.seconds.items()}


def speed(problem: Problem, plan: Plan) -> float:
    """What plans are compared by: tokens per second and GPU, or what the serving goal asks instead."""
    if plan.serving is not None and problem.mode == "inference":
        if problem.inference.goal == "latency":
            return 1.0 / (plan.serving.ttft_s + (problem.inference.osl - 1) * plan.serving.tpot_s)
        if problem.inference.goal == "cost":
            return float(wanted_per_gpu(problem, plan.throughput * problem.cluster.n_gpus, plan.strategy.world))
    return plan.throughput


def wanted_per_gpu(problem: Problem, output_tokens_per_s: Array | float, gpus: NDArray[Any] | int) -> Array:
    """Output tokens per second per GPU in use; of tokens beyond the request rate that is served, none."""
    work = problem.inference
    if work.paced and (rate := work.request_rate_per_s) is not None:
        output_tokens_per_s = np.minimum(output_tokens_per_s, rate * work.osl)
    return np.asarray(output_tokens_per_s / gpus)


def _memory_title(cause: str) -> str:
    part = cause.rsplit(": ", 1)[-1]  # "activation: expert workspaces"
    return _MEMORY_TITLES.get(part, part.replace("_", " "))


def title(cause: str) -> str:
    """A cause in words."""
    return _TITLES.get(cause, cause.replace("_", " "))


def largest_increase(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, str]:
    """The cause that grows most, and by how much; (0, "") where none does."""
    gains = [(after.get(c, 0.0) - before.get(c, 0.0), c) for c in sorted(before.keys() | after.keys())]
    most = max(gains, default=(0.0, ""))
    return most if most[0] > 0 else (0.0, "")


def _seconds(s: float) -> str:
    return f"{s:.3g} s" if s >= 1 else f"{s * 1e3:.3g} ms" if s >= 1e-3 else f"{s * 1e6:.3g} µs"


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.1f} GB"
