"""Serving answers as records: layout of one instance, KV capacity, latencies with intervals, throughput."""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.report import format as fmt
from autoparallel_core.report.layout import Column
from autoparallel_core.report.training import memory_columns, total_columns
from autoparallel_core.search.result import Plan, ServingFigures


def interval(value_s: float, low_high_s: tuple[float, float]) -> str:
    """``212 ms (180–260)``: a latency with its interval in the same unit; bare when the interval is empty."""
    low, high = low_high_s
    text = fmt.seconds(value_s)
    if low == high:
        return text
    number, unit = text.rsplit(" ", 1)
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    return f"{number} {unit} ({fmt.significant(low / scale)}–{fmt.significant(high / scale)})"


def layout(plan: Plan) -> str:
    """One instance in words: ``2 × 4 GPUs: tp 4``."""
    s, f = plan.strategy, plan.serving
    assert f is not None, "a serving answer holds serving figures"
    dims = [
        f"{name} {value}" for name, value in (("tp", s.tp), ("pp", s.pp), ("attention dp", s.attn_dp), ("ep", s.ep)) if value > 1
    ]
    return f"{f.instances:,} × {f.gpus_per_instance} GPU{'s' if f.gpus_per_instance > 1 else ''}" + (
        f": {', '.join(dims)}" if dims else ""
    )


def serving_columns(plans: Sequence[Plan], *, ranked: bool = True) -> list[Column]:
    """The columns of a serving answer, most important first."""
    figures: list[ServingFigures] = [p.serving for p in plans if p.serving is not None]
    assert len(figures) == len(plans), "a serving answer holds serving figures"
    rank = [Column("#", [str(i + 1) for i in range(len(plans))], words="#{}")] if ranked else []
    return [
        *rank,
        Column("strategy", [str(p.strategy) for p in plans], right=False, words="{}"),
        Column("output\ntok/s/GPU", [fmt.significant(f.output_tokens_per_s_per_gpu, 4) for f in figures]),
        Column("TTFT", [fmt.seconds(f.ttft_s) for f in figures], words="TTFT {}"),
        Column("TPOT", [fmt.seconds(f.tpot_s) for f in figures], words="TPOT {}"),
        *total_columns(plans),
        Column("instances", [layout(p) for p in plans], right=False, main=False, words="{}"),
        Column("TTFT low–high", [_span(f.ttft_interval_s) for f in figures], main=False, words="TTFT {}"),
        Column("TPOT low–high", [_span(f.tpot_interval_s) for f in figures], main=False, words="TPOT {}"),
        Column(
            "end-to-end\n/token", [fmt.seconds(f.e2e_tpot_s) for f in figures], main=False, words="end-to-end {} per output token"
        ),
        Column("prefill", [fmt.seconds(f.prefill_s) for f in figures], main=False, words="prefill {}"),
        Column(
            "batch\n/instance",
            [fmt.significant(f.batch_per_instance) for f in figures],
            main=False,
            words="{} sequences decoding per instance",
        ),
        Column(
            "KV tokens\n/instance",
            [f"{f.kv_tokens_per_instance:,}" for f in figures],
            main=False,
            words="KV {} tokens per instance",
        ),
        Column("max\nrequests", [f"{f.max_concurrency:,}" for f in figures], main=False, words="room for {} requests"),
        Column(
            "output\ntok/s",
            [fmt.significant(f.output_tokens_per_s, 4) for f in figures],
            main=False,
            words="{} output tok/s in all",
        ),
        Column("requests/s", [fmt.significant(f.requests_per_s) for f in figures], main=False, words="{} requests/s"),
        *memory_columns(plans),
    ]


def _span(low_high_s: tuple[float, float]) -> str:
    low, high = low_high_s
    return f"{fmt.seconds(low)}–{fmt.seconds(high)}" if low != high else ""
