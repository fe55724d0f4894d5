"""Serving answers as records: layout of one instance, KV capacity, latencies with intervals, throughput."""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.report import format as fmt
from autoparallel_core.report.layout import Column
from autoparallel_core.report.training import marked, memory_columns, ties
from autoparallel_core.search.result import Plan, ServingFigures
from autoparallel_core.spec.problem import Problem

LEGEND = (
    "TPOT: mean time between the tokens of a request after its first (inter-token latency). End-to-end/token: the whole time of "
    "a request over its output tokens. Low–high: where 80% of measured runs lie."
)
_FULL = 0.995
"""Share of the cache from which it is called full."""


def layout(plan: Plan) -> str:
    """One instance in words: ``2 × 4 GPUs: tp 4``."""
    s, f = plan.strategy, plan.serving
    assert f is not None, "a serving answer holds serving figures"
    degrees = (("tp", s.tp), ("pp", s.pp), ("attention dp", s.attn_dp), ("ep", s.ep), ("etp", s.etp))
    dims = [f"{name} {value}" for name, value in degrees if value > 1]
    return f"{f.instances:,} × {f.gpus_per_instance} GPU{'s' if f.gpus_per_instance > 1 else ''}" + (
        f": {', '.join(dims)}" if dims else ""
    )


def serving_columns(problem: Problem, plans: Sequence[Plan], *, ranked: bool = True) -> list[Column]:
    """The columns of a serving answer, most important first; what the goal ranks by comes right behind the strategy.

    Engines fill a fixed share of the memory, so that a peak says nothing: what the KV cache holds stands in its place.
    """
    figures: list[ServingFigures] = [p.serving for p in plans if p.serving is not None]
    assert len(figures) == len(plans), "a serving answer holds serving figures"
    osl = problem.inference.osl
    rank = [Column("#", [str(i + 1) for i in range(len(plans))], words="#{}")] if ranked else []

    def column(title: str, cells: Sequence[str], words: str = "", *, starts: bool = False, right: bool = True) -> Column:
        return Column(title, cells, words=words, starts=starts, right=right)

    goal = problem.inference.goal
    marks = ties(problem, plans) if ranked else [""] * len(plans)
    rates = [fmt.significant(f.output_tokens_per_s_per_gpu, 4) for f in figures]
    in_use = [fmt.significant(f.output_tokens_per_s / f.gpus, 4) for f in figures]
    ranking = {
        "latency": [column("end-to-end\n/request", marked(marks, [fmt.seconds(f.e2e_tpot_s * osl) for f in figures]))],
        "cost": [column("tok/s/GPU\nin use", marked(marks, in_use), "{} output tokens/s per GPU in use")],
    }
    return [
        *rank,
        Column("strategy", [p.notation for p in plans], right=False, words="{}"),
        *ranking.get(goal, []),
        column("output\ntok/s/GPU", marked(marks, rates) if goal == "throughput" else rates, "{} output tokens/s per GPU"),
        column("tok/s\n/user", [per_user(f.tpot_s) for f in figures], "{} tokens/s per user"),
        column("TTFT", [fmt.seconds(f.ttft_s) for f in figures]),
        column("TPOT", [fmt.seconds(f.tpot_s) for f in figures]),
        column("requests\nin flight", [f"{f.concurrency:,.0f}" for f in figures], "requests in flight: {}"),
        *_waiting(figures),
        column("KV cache\nin use", [kv_use(p) for p in plans], "KV cache in use: {}"),
        *_prices(figures),
        column("instances", [layout(p) for p in plans], "{}", right=False),
        column(
            "output\ntok/s",
            [fmt.significant(f.output_tokens_per_s, 4) for f in figures],
            "{} output tokens/s in all",
            starts=True,
        ),
        column("requests\n/s", [fmt.significant(f.requests_per_s) for f in figures], "{} requests/s"),
        column("TTFT\nlow–high", [span(f.ttft_interval_s) for f in figures], "TTFT {}"),
        column("TPOT\nlow–high", [span(f.tpot_interval_s) for f in figures], "TPOT {}"),
        column("end-to-end\n/token", [fmt.seconds(f.e2e_tpot_s) for f in figures], "end-to-end {} per output token"),
        column("end-to-end\nlow–high", [span(f.e2e_tpot_interval_s) for f in figures], "{} of it"),
        column("prefill", [fmt.seconds(f.prefill_s) for f in figures], "prefill {}"),
        column(
            "batch\n/instance", [fmt.significant(f.batch_per_instance) for f in figures], "{} sequences per instance", starts=True
        ),
        column("KV tokens\n/instance", [f"{f.kv_tokens_per_instance:,}" for f in figures], "KV {} tokens per instance"),
        column("room for\nrequests", [f"{f.max_concurrency:,}" for f in figures], "room for requests: {}"),
        *_longest(figures),
        *memory_columns(plans),
    ]


def per_user(tpot_s: float) -> str:
    """Tokens per second that one user sees after the first; nothing where a request has one token."""
    return fmt.significant(1.0 / tpot_s) if tpot_s > 0 else ""


def kv_use(plan: Plan) -> str:
    """How full the cache is when the requests that run together have reached their full length."""
    assert plan.serving is not None, "a serving answer holds serving figures"
    if plan.verdict == "does not fit":
        return "too small"
    return "full" if plan.serving.kv_use > _FULL else f"{plan.serving.kv_use:.0%}"


def _waiting(figures: Sequence[ServingFigures]) -> list[Column]:
    if all(f.waiting < 1 for f in figures):
        return []
    return [Column("of these\nwaiting", [f"{f.waiting:,.0f}" for f in figures], words="{} of these waiting")]


def _prices(figures: Sequence[ServingFigures]) -> list[Column]:
    """Of a million output tokens, and of a million tokens of either kind, where the workload has a price."""
    out = []
    for title, words, name in (
        ("price per 1M\noutput tokens", "{} per million output tokens", "price_per_million_output_tokens"),
        ("price per\n1M tokens", "{} per million tokens, input and output", "price_per_million_tokens"),
    ):
        prices = [getattr(f, name) for f in figures]
        if any(p is not None for p in prices):
            out.append(Column(title, ["" if p is None else fmt.significant(p) for p in prices], words=words))
    return out


def _longest(figures: Sequence[ServingFigures]) -> list[Column]:
    cells = [f"{f.longest_request_tokens:,}" if f.longest_request_tokens else "" for f in figures]
    title, words = "longest\nrequest", "longest request with as many together: {} tokens"
    return [Column(title, cells, words=words)] if any(cells) else []


def span(low_high_s: tuple[float, float]) -> str:
    """``180–260 ms``; empty when the interval is a point."""
    low, high = low_high_s
    if low == high:
        return ""
    first, last = fmt.seconds(low), fmt.seconds(high)
    unit = last.rsplit(" ", 1)[1]
    return f"{first.removesuffix(unit).rstrip()}–{last}" if first.endswith(f" {unit}") else f"{first}–{last}"
