"""When nothing fits: what is missing, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autoparallel_core.report import format as fmt
from autoparallel_core.spec.workload import InferenceWorkload

if TYPE_CHECKING:
    from autoparallel_core.search.frontier import LoadPoint
    from autoparallel_core.search.min_nodes import MinNodes
    from autoparallel_core.search.result import Plan, SearchResult

_RUN = 4
"""Consecutive numbers up to so many are listed one by one."""


def what_is_missing(
    result: SearchResult,
    found: MinNodes | None = None,
    *,
    gpus: int | None = None,
    too_slow: Plan | None = None,
    less_load: LoadPoint | None = None,
) -> list[str]:
    """Sentences: which memory is short by how much, which latency limit nothing meets, how many GPUs would do.

    Args:
        result: the search in which nothing fitted.
        found: the fewest nodes that do, when they were looked for.
        gpus: the fewest GPUs inside a node that do.
        too_slow: the plan that fits and comes nearest to the limits of latency and rate.
        less_load: the deployment that serves most within the limits of latency, with fewer requests in flight than asked for.
    """
    out = []
    cluster = result.problem.cluster
    miss = result.nearest_miss
    if too_slow is not None:
        out.append(_too_slow(result, too_slow))
        if less_load is not None:
            out.append(
                f"requests in flight: {less_load.concurrency:,} would do, with {str(less_load.strategy).replace(' mbs1', '')}: "
                f"TTFT {fmt.seconds(less_load.ttft_s)}, TPOT {fmt.seconds(less_load.tpot_s)}"
            )
    elif miss is None:
        out.append(f"no strategy is legal on {cluster.n_gpus:,} GPUs; the rules below say why")
    else:
        memory = miss.memory
        who = "the nearest miss"
        if memory.margin_bytes < 0:
            out.append(
                f"GPU memory: {who} needs {fmt.memory(memory.reserved_bytes)} on stage {memory.deciding.stage} of "
                f"{fmt.memory(memory.capacity_bytes)}, {fmt.memory(-memory.margin_bytes)} too much per GPU"
            )
            who = "it"
        over = memory.host_bytes_per_node - cluster.host_memory_bytes_per_node
        if over > 0:
            out.append(
                f"host memory: {who} needs {fmt.memory(memory.host_bytes_per_node)} per node of "
                f"{fmt.memory(cluster.host_memory_bytes_per_node)}, {fmt.memory(over)} too much"
            )
        serving, work = miss.serving, result.problem.workload
        if serving is not None and isinstance(work, InferenceWorkload) and not out:
            longest = max(work.context_tokens, work.max_model_len or 0)
            if serving.longest_alone_tokens is not None and serving.longest_alone_tokens < longest:
                capacity, peak = fmt.memory(memory.capacity_bytes), fmt.memory(memory.reserved_bytes)
                out.append(
                    f"KV cache: what the engine's memory fraction leaves of {capacity} does not hold one request of "
                    f"{longest:,} tokens; with it the nearest miss would take {peak}"
                )
        asked = getattr(work, "concurrency", None)
        if serving is not None and asked and serving.max_concurrency < asked:
            out.append(f"KV cache: room for {fmt.plural(serving.max_concurrency, 'request')} of the {asked:,} asked for")
    if gpus is not None:
        out.append(f"GPUs: {gpus:,} would do, {gpus - cluster.n_gpus:,} more than the {cluster.n_gpus:,} given")
    elif found is not None:
        out.append(_gpus_needed(result, found))
    return out


def _too_slow(result: SearchResult, plan: Plan) -> str:
    work, figures = result.problem.inference, plan.serving
    assert figures is not None, "a plan of serving holds its figures"
    over = [
        f"{name} {fmt.seconds(value)} where at most {fmt.seconds(limit)} is allowed ({fmt.seconds(value - limit)} too slow)"
        for name, value, limit in (("TTFT", figures.ttft_s, work.ttft_limit_s), ("TPOT", figures.tpot_s, work.tpot_limit_s))
        if limit is not None and value > limit
    ]
    rate = work.request_rate_per_s
    if rate is not None and figures.requests_per_s < rate:
        within = "" if over or (work.ttft_limit_s is None and work.tpot_limit_s is None) else " at most within the limits"
        done = f"{fmt.significant(figures.requests_per_s)} requests/s{within} where {fmt.significant(rate)} are asked for"
        what = "latency and rate" if over else "rate"
        return f"{what}: the nearest strategy that fits, {plan.notation}, has {' and '.join([*over, done])}"
    return f"latency: the nearest strategy that fits, {plan.notation}, has {' and '.join(over)}"


def _gpus_needed(result: SearchResult, found: MinNodes) -> str:
    have = result.problem.cluster
    if found.nodes is None or found.n_gpus is None:
        either = "" if have.n_nodes in found.tried else " either"
        return f"GPUs: nothing fits on {_counts(found)} node{'s' * (found.most_nodes > 1)} of {have.gpus_per_node}{either}"
    more = found.n_gpus - have.n_gpus
    if more <= 0:
        return f"GPUs: {found.n_gpus:,} ({_nodes(found.nodes)}) would do, with degrees that {have.n_gpus:,} does not divide into"
    return f"GPUs: {found.n_gpus:,} ({_nodes(found.nodes)}) would do, {more:,} more than the {have.n_gpus:,} given"


def _nodes(n: int) -> str:
    return f"{n:,} node{'s' if n != 1 else ''}"


def _counts(found: MinNodes) -> str:
    """``1, 2, 4–8``: what was tried, in rising order, longer runs as ranges."""
    runs: list[list[int]] = []
    for n in sorted(found.tried):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]:,}–{r[-1]:,}" if len(r) > _RUN else ", ".join(f"{n:,}" for n in r) for r in runs)


def min_nodes_line(found: MinNodes) -> str:
    """The answer of ``--find-min-nodes`` in one sentence."""
    cluster = found.result.problem.cluster
    per_node = min(cluster.gpus_per_node, found.n_gpus or cluster.gpus_per_node)
    if found.nodes is None:
        return f"nothing fits on up to {_nodes(found.most_nodes)} (tried {_counts(found)})"
    if found.n_gpus is not None and found.tried_gpus and found.n_gpus < max(cluster.gpus_per_node, *found.tried_gpus):
        tried = ", ".join(str(n) for n in sorted(found.tried_gpus))
        which = "GPU of one node is" if found.n_gpus == 1 else "GPUs of one node are"
        return f"{found.n_gpus} {which} the fewest that fit{'s' * (found.n_gpus == 1)} (tried {tried})"
    parts = [f"{_nodes(found.nodes)} of {per_node} is the fewest that fits: {found.n_gpus:,} GPUs (tried {_counts(found)})"]
    if needs := _needs(found):
        parts.append(f"#1 there {needs}")
    if found.roomy_most is not None:
        parts.append(_room(found, per_node))
    return "; ".join(parts)


def _needs(found: MinNodes) -> str:
    """How near to the edge the answer's best plan is."""
    plan = found.result.plans[0]
    out = []
    if plan.memory.host_bytes_per_node:
        offered = found.result.problem.cluster.host_memory_bytes_per_node
        out.append(f"needs {fmt.memory(plan.memory.host_bytes_per_node)} of {fmt.memory(offered)} host memory per node")
    if plan.verdict == "tight" and found.result.problem.mode == "training":
        out.append(f"is tight ({fmt.memory(plan.memory.margin_bytes)} free)")
    return " and ".join(out)


def _room(found: MinNodes, per_node: int) -> str:
    work = found.result.problem.workload
    what = "not tight" if getattr(work, "optimizer_cpu_offload", None) else "not tight, nothing in host memory"
    room = f"room to spare ({what})"
    if found.roomy_nodes is None:
        return f"no plan on up to {_nodes(found.roomy_most or found.most_nodes)} has {room}"
    if found.roomy_nodes == found.nodes:
        return f"a plan there has {room}"
    return f"a plan with {room} needs {_nodes(found.roomy_nodes)}, {found.roomy_nodes * per_node:,} GPUs"


def min_nodes_document(found: MinNodes) -> dict[str, Any]:
    per_node = found.result.problem.cluster.gpus_per_node
    plans = found.result.plans if found.nodes is not None else ()
    return {
        "n_nodes": found.nodes,
        "n_gpus": found.n_gpus,
        "host_bytes_per_node": plans[0].memory.host_bytes_per_node if plans else None,
        "roomy_n_nodes": found.roomy_nodes,
        "roomy_n_gpus": None if found.roomy_nodes is None else found.roomy_nodes * per_node,
        "roomy_most_nodes": found.roomy_most,
        "most_nodes": found.most_nodes,
        "tried_nodes": sorted(found.tried),
        "tried_gpus": sorted(found.tried_gpus),
        "skipped_nodes": [{"n_nodes": n, "reason": why} for n, why in found.skipped],
    }
