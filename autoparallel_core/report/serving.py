"""Serving answers as records: layout of one instance, KV capacity, latencies with intervals, throughput."""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.report import format as fmt
from autoparallel_core.report.layout import Column
from autoparallel_core.report.training import marked, memory_columns, ties, total_columns, verdict_column
from autoparallel_core.search.result import Plan, ServingFigures
from autoparallel_core.spec.problem import Problem


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
    """The columns of a serving answer, most important first; what the goal ranks by comes right behind the strategy."""
    figures: list[ServingFigures] = [p.serving for p in plans if p.serving is not None]
    assert len(figures) == len(plans), "a serving answer holds serving figures"
    osl = problem.inference.osl
    rank = [Column("#", [str(i + 1) for i in range(len(plans))], words="#{}")] if ranked else []

    def column(title: str, cells: Sequence[str], words: str = "", *, starts: bool = False, right: bool = True) -> Column:
        return Column(title, cells, words=words, starts=starts, right=right)

    goal = problem.inference.goal
    marks = ties(problem, plans) if ranked else [""] * len(plans)
    rates = [fmt.significant(f.output_tokens_per_s_per_gpu, 4) for f in figures]
    latency = column("end-to-end\n/request", marked(marks, [fmt.seconds(f.e2e_tpot_s * osl) for f in figures]))
    in_use = [fmt.significant(f.output_tokens_per_s / p.strategy.world, 4) for p, f in zip(plans, figures, strict=True)]
    ranking = {
        "latency": [latency],
        "cost": [column("tok/s/GPU\nin use", marked(marks, in_use), "{} output tokens/s per GPU in use")],
    }
    return [
        *rank,
        Column("strategy", [p.notation for p in plans], right=False, words="{}"),
        *ranking.get(goal, []),
        column("output\ntok/s/GPU", marked(marks, rates) if goal == "throughput" else rates, "{} output tokens/s per GPU"),
        column("TTFT", [fmt.seconds(f.ttft_s) for f in figures]),
        column("TPOT", [fmt.seconds(f.tpot_s) for f in figures]),
        verdict_column(plans),
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
        column("prefill", [fmt.seconds(f.prefill_s) for f in figures], "prefill {}"),
        column(
            "batch\n/instance", [fmt.significant(f.batch_per_instance) for f in figures], "{} sequences per instance", starts=True
        ),
        column("KV tokens\n/instance", [f"{f.kv_tokens_per_instance:,}" for f in figures], "KV {} tokens per instance"),
        column("room for\nrequests", [f"{f.max_concurrency:,}" for f in figures], "room for requests: {}"),
        total_columns(plans)[0],
        *memory_columns(plans),
    ]


def span(low_high_s: tuple[float, float]) -> str:
    """``180–260 ms``; empty when the interval is a point."""
    low, high = low_high_s
    if low == high:
        return ""
    first, last = fmt.seconds(low), fmt.seconds(high)
    unit = last.rsplit(" ", 1)[1]
    return f"{first.removesuffix(unit).rstrip()}–{last}" if first.endswith(f" {unit}") else f"{first}–{last}"
