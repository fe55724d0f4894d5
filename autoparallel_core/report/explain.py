"""One strategy in full: where each second and each byte goes, what limits it, and what would help."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from autoparallel_core.planners.reasons import notes
from autoparallel_core.report import format as fmt
from autoparallel_core.report.answer import columns_of
from autoparallel_core.report.bars import bar, legend, part_styles, stacked
from autoparallel_core.report.causes import words
from autoparallel_core.report.console import bullets, heading, put
from autoparallel_core.report.document import constant_document, envelope, plan_document, problem_document
from autoparallel_core.report.header import print_header
from autoparallel_core.report.layout import Column, print_bands, print_figures, print_records
from autoparallel_core.report.shares import SMALL_BYTES, folded, memory_cells
from autoparallel_core.report.stages import print_plan_stages
from autoparallel_core.report.training import titled
from autoparallel_core.search.neighbours import Neighbour
from autoparallel_core.search.result import Plan, StageMemory
from autoparallel_core.spec.cluster import Gpu
from autoparallel_core.spec.problem import Constant, Problem

_CHANGES_SHOWN = 6
_NO_RATE = 0.01
"""Below this ratio the rate is that of a cache without room, not of the strategy."""
_WORTH_SAYING = 0.002
"""Share of the step below which a cause's change is not mentioned."""


def print_explanation(
    console: Console,
    problem: Problem,
    parameters: Mapping[str, Any],
    plan: Plan,
    changes: Sequence[Neighbour],
    *,
    extra: Sequence[tuple[str, str]] = (),
    sources: Sequence[tuple[str, str, str, str]] = (),
    time_sources: Mapping[str, float] | None = None,
) -> None:
    """Print the whole explanation; ``sources`` are rows of :func:`source_rows`, ``time_sources`` seconds by origin."""
    about = notes(problem, plan)
    print_header(console, problem, parameters, assumptions=problem.assumptions, extra=extra, notes=about, plans=[plan])
    heading(console, plan.notation)
    print_figures(console, columns_of(problem, [plan], ranked=False)[1:])
    bullets(console, (*plan.reasons, *(plan.serving.notes if plan.serving else ())), indent=2)
    _print_time(console, problem, plan)
    if plan.stages:
        print_plan_stages(console, plan, "Stages")
    _print_memory(console, plan)
    heading(console, "What limits it")
    bullets(console, limits(problem, plan))
    _print_changes(console, plan, changes)
    if sources:
        _print_sources(console, sources, time_sources or {})


def _print_time(console: Console, problem: Problem, plan: Plan) -> None:
    what = "one step" if problem.mode == "training" else "one output token"
    heading(console, f"Where the time of {what} goes: {fmt.seconds(plan.cost.total_s)}")
    total = plan.cost.total_s
    rows = sorted(((k, v) for k, v in plan.cost.seconds.items() if v), key=lambda kv: -kv[1])
    names = [*(words(k) for k, _ in rows), "sum"]
    times = [*(v for _, v in rows), total]
    fixed = [
        Column("", names, right=False),
        Column("seconds", [f"{t:,.6f}" if total < 10 else f"{t:,.4f}" for t in times]),
        Column("share", [fmt.percent(t / total) if total else "" for t in times]),
    ]
    room = max(10, console.width - sum(c.width + 2 for c in fixed))
    most = max((v for _, v in rows), default=0.0)
    bars = [bar(v / most, room) if most else "" for _, v in rows]
    print_records(console, [*fixed, Column("", [*bars, ""], right=False)])


def _print_memory(console: Console, plan: Plan) -> None:
    memory = plan.memory
    heading(console, f"Memory by pipeline stage, in GB (each GPU has {fmt.memory(memory.capacity_bytes)})")
    parts, amounts = folded([s.parts for s in memory.stages])
    styles = part_styles(parts)
    label_width = max(len(f"stage {s.stage}") for s in memory.stages)
    amount_width = max(len(fmt.tenths(s.peak_bytes)) for s in memory.stages)
    largest = max(*(s.peak_bytes for s in memory.stages), memory.capacity_bytes)
    room = max(10, int((console.width - label_width - amount_width - 6) * memory.capacity_bytes / largest))
    for s, row in zip(memory.stages, amounts, strict=True):
        line = Text(f"{f'stage {s.stage}':<{label_width}}  {fmt.tenths(s.peak_bytes):>{amount_width}}  ")
        console.print(line + stacked(row, memory.capacity_bytes, room, styles), soft_wrap=True)
    put(console, legend(styles, {p: words(p) for p in parts}))
    console.print()
    causes, cells = memory_cells([s.parts for s in memory.stages], [s.peak_bytes for s in memory.stages])
    columns = [
        Column("stage", [str(s.stage) for s in memory.stages]),
        Column("layers", [str(s.layers) for s in memory.stages]),
        Column("peak", [fmt.tenths(s.peak_bytes) for s in memory.stages], words="peak {} GB"),
    ]
    columns += [
        Column(titled(cause, unit=""), [row[i] for row in cells], words=f"{words(cause)} {{}}") for i, cause in enumerate(causes)
    ]
    print_bands(console, columns)
    d = memory.deciding
    if plan.serving is None:
        put(
            console,
            f"Stage {d.stage} decides: {fmt.memory(memory.allocated_bytes)} allocated, {fmt.memory(memory.reserved_bytes)} with "
            f"the allocator's slack, context and communicators; {fmt.signed_memory(memory.margin_bytes)} to the limit.",
        )
    if d.squeezed_bytes >= SMALL_BYTES:
        put(console, squeezed(d))
    if len(memory.stages) < plan.strategy.pp:
        put(console, "Stages with the same layers are shown once, by the earliest: it holds the most micro-batches in flight.")
    if memory.host_bytes_per_node:
        put(console, f"Host memory: {fmt.memory(memory.host_bytes_per_node)} per node.")


def squeezed(stage: StageMemory) -> str:
    """What the allocator would hold beyond the device, and why that does not matter."""
    return (
        f"With more memory the allocator would cache another {fmt.memory(stage.squeezed_bytes)}; the GPU has no room for them, "
        "and blocks that are only cached are given back before an allocation fails."
    )


def limits(problem: Problem, plan: Plan) -> list[str]:
    """Where it stands under the hardware's roof, what the time is spent on first, and what the memory is full of."""
    out = [roofline(problem, plan)]
    total = plan.cost.total_s
    ranked = sorted(plan.cost.seconds.items(), key=lambda kv: -kv[1])
    if ranked and total > 0:
        first = ", then ".join(f"{words(k)} ({fmt.percent(v / total)})" for k, v in ranked[:3])
        out.append(f"time goes first to {first}")
    if plan.serving is not None:
        f = plan.serving
        out.append(
            f"memory: {fmt.memory(f.weights_bytes_per_gpu)} of weights and {fmt.memory(f.kv_bytes_per_gpu)} of KV cache per GPU; "
            f"the cache of all instances holds {fmt.plural(f.max_concurrency, 'request')}, "
            f"{f.instances * f.batch_per_instance:,.0f} run"
        )
        return out
    d = plan.memory.deciding
    parts = sorted(d.bytes.items(), key=lambda kv: -kv[1])[:2]
    used = plan.memory.reserved_bytes / plan.memory.capacity_bytes
    filled = " and ".join(f"{words(k)} ({fmt.memory(v)})" for k, v in parts)
    out.append(f"memory of stage {d.stage} is {fmt.percent(used)} full, mostly {filled}: {plan.verdict}")
    return out


def roofline(problem: Problem, plan: Plan) -> str:
    """The time that the hardware's peak would need, beside the predicted one."""
    gpu = problem.cluster.gpu
    if plan.training is not None:
        least = plan.training.mfu * plan.training.step_s
        return (
            f"roofline: the model's own FLOPs at the dense {gpu.wide_dtype} peak ({fmt.flops(gpu.peak(gpu.wide_dtype))}) take "
            f"{fmt.seconds(least)} "
            f"of {fmt.seconds(plan.training.step_s)}, an MFU of {fmt.percent(plan.training.mfu)}"
        )
    assert plan.serving is not None, "a plan holds figures of one mode"
    weights = plan.serving.weights_bytes_per_gpu
    once = weights / gpu.hbm_bytes_per_s
    return (
        f"roofline: reading a GPU's {fmt.memory(weights)} of weights once takes {fmt.seconds(once)} at full HBM bandwidth "
        f"({fmt.bandwidth(gpu.hbm_bytes_per_s)}); the time per output token is {fmt.seconds(plan.serving.tpot_s)}"
    )


def change_sentence(change: Neighbour, total_s: float) -> str:
    """``tp 8→4, dp 2→4: −6.0%: less exposed tp (−0.81 s), more bubble (+0.20 s); +9.1 GB, fits``."""
    moved = sorted(change.seconds_change.items(), key=lambda kv: -abs(kv[1]))
    worth = [(k, v) for k, v in moved if abs(v) >= _WORTH_SAYING * total_s][:3]
    causes = ", ".join(_moved(k, v) for k, v in worth)
    if change.slowest:
        causes = f"another stage becomes the slowest, {change.slowest}{': ' if causes else ''}{causes}"
    text = f"{change.change}:"
    if change.fits or change.throughput_ratio > _NO_RATE:
        text += f" {fmt.change(change.throughput_ratio)} tokens/s{': ' if causes else ''}{causes};"
    text += f" {fmt.signed_memory(change.memory_change_bytes)} of memory"
    over = [
        f"{fmt.memory(amount)} too much {where}"
        for amount, where in ((change.shortfall_bytes, "per GPU"), (change.host_shortfall_bytes, "of host memory per node"))
        if amount > 0
    ]
    return text + (", fits" if change.fits else f", does not fit{': ' if over else ''}{' and '.join(over)}")


def _moved(cause: str, seconds: float) -> str:
    amount = f"{'+' if seconds > 0 else '−'}{fmt.seconds(abs(seconds))}"
    return f"its work {amount}" if cause == "slowest_stage" else f"{'more' if seconds > 0 else 'less'} {words(cause)} ({amount})"


def _print_changes(console: Console, plan: Plan, changes: Sequence[Neighbour]) -> None:
    heading(console, "Single changes")
    if not changes:
        put(console, "No legal strategy differs from this one along a single axis.")
        return
    if plan.stages:
        put(console, "Each with the usual stages, against this strategy with the usual stages, not against the plan above.")
    fitting = [c for c in changes if c.fits]
    if plan.verdict == "does not fit":
        best = fitting[0] if fitting else None
        put(console, f"To make it fit: {_said(best, plan)}." if best else "No single change makes it fit.", style="bold")
        order = fitting or sorted(changes, key=lambda c: (c.shortfall_bytes + c.host_shortfall_bytes, -c.throughput_ratio))
    else:
        best = next((c for c in fitting if c.throughput_ratio > 1 + _WORTH_SAYING), None)
        put(console, f"Helps most: {_said(best, plan)}." if best else "None that fits is faster.", style="bold")
        order = list(changes)
    rest = [c for c in order if c is not best][:_CHANGES_SHOWN]
    bullets(console, [_said(c, plan) for c in rest])
    if (left := len(changes) - len(rest) - bool(best)) > 0:
        put(console, f"{left} further single changes are legal.", style="dim")


def _said(change: Neighbour, plan: Plan) -> str:
    return change_sentence(change, plan.cost.total_s)


def constants_of(problem: Problem, names: Collection[str] | None = None) -> dict[str, Constant]:
    """The constants of these names; None: all that can matter to the problem's mode."""
    if names is not None:
        return {name: c for name, c in problem.constants.items() if name in names}
    serving = problem.mode == "inference"
    return {name: c for name, c in problem.constants.items() if serving or not name.startswith("serving_")}


def source_rows(problem: Problem, names: Collection[str] | None = None) -> list[tuple[str, str, str, str]]:
    """Every number behind the answer as (name, value, origin, source), constants first, then the GPU's figures."""
    rows = [(n, f"{c.value:g}", c.origin, f"{c.meaning} ({c.source})") for n, c in sorted(constants_of(problem, names).items())]
    return rows + gpu_source_rows(problem) + [
        (f"tier {t.name}", fmt.bandwidth(t.bytes_per_s), origin_of(t.source), t.source) for t in problem.cluster.tiers
    ]  # fmt: skip


def origin_of(source: str) -> str:
    """What a figure's source says it is: ``assumed``, ``fitted`` or ``measured`` where it begins so, else ``stated``."""
    first = source.split(" ", 1)[0].rstrip(":,").casefold()
    return first if first in {"assumed", "fitted", "measured"} else "stated"


def gpu_source_rows(problem: Problem) -> list[tuple[str, str, str, str]]:
    """The GPU's figures that matter to the mode, with where each comes from."""
    gpu, training = problem.cluster.gpu, problem.mode == "training"
    other = "serving." if training else "training."
    rows = [(f"{gpu.name} {n}", _figure(gpu, n), origin_of(source), source) for n, source in gpu.sources.items()
            if not n.startswith(other)]  # fmt: skip
    if training:  # kernels and collectives are in the constants under "training."
        return rows
    for kind in ("gemm", "expert_gemm", "attention"):
        rows += [
            (
                f"{gpu.name} {kind} {name}",
                f"{e.compute:.3g} compute, {e.memory:.3g} memory",
                e.origin if e.origin != "preset" else origin_of(e.source),
                e.source,
            )
            for name, e in getattr(gpu, kind).items()
        ]
    for kind, curves in gpu.collectives.items():
        rows += [
            (
                f"{gpu.name} {kind} over {c.ranks}",
                f"{fmt.bandwidth(c.bus_bytes_per_s)}, {fmt.seconds(c.latency_s)}",
                c.origin if c.origin != "preset" else origin_of(c.source),
                c.source,
            )
            for c in curves
        ]
    return rows


def _figure(gpu: Gpu, name: str) -> str:
    table, _, key = name.partition(".")
    value = getattr(gpu, table, None)
    if isinstance(value, Mapping):
        each = fmt.flops if table == "peak_flops" else "{:g}".format
        value = value.get(key) if key else ", ".join(f"{k} {each(v)}" for k, v in value.items() if isinstance(v, int | float))
    if not isinstance(value, int | float):
        return str(value if value is not None else "")
    if name.endswith("bytes_per_s"):
        return fmt.bandwidth(value)
    if "memory_bytes" in name:
        return fmt.memory(value)
    return fmt.seconds(value) if name.endswith("_s") else f"{value:g}"


def _print_sources(console: Console, rows: Sequence[tuple[str, str, str, str]], time_sources: Mapping[str, float]) -> None:
    heading(console, "Where the numbers come from")
    if total := sum(time_sources.values()):
        parts = sorted(time_sources.items(), key=lambda kv: -kv[1])
        shares = ", ".join(f"{fmt.percent(s / total)} {o} ({fmt.seconds(s)})" for o, s in parts)
        put(console, f"Of the time, by the leading figure behind it: {shares}")
    counts: dict[str, int] = {}
    for _, _, origin, _ in rows:
        counts[origin] = counts.get(origin, 0) + 1
    put(console, ", ".join(f"{n} {origin}" for origin, n in sorted(counts.items(), key=lambda kv: -kv[1])))
    for name, value, origin, source in rows:
        put(console, Text.assemble((name, "bold"), f" = {value} [{origin}] {source}"), indent=2)


def explanation_document(
    problem: Problem,
    model: Mapping[str, Any],
    plan: Plan,
    changes: Sequence[Neighbour],
    *,
    sources: bool,
    constants: Collection[str] | None = None,
    time_sources: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The explanation as JSON; ``constants`` names those listed among the sources, ``time_sources`` holds seconds by origin."""
    return envelope(
        "explain",
        {
            "status": "ok" if plan.verdict != "does not fit" else "does not fit",
            **problem_document(problem, model),
            "assumptions": list(problem.assumptions),
            "notes": notes(problem, plan),
            "plan": plan_document(plan),
            "limits": limits(problem, plan),
            "changes": [
                {
                    "change": c.change,
                    "strategy": str(c.strategy),
                    "throughput_ratio": c.throughput_ratio,
                    "seconds_change_s": dict(c.seconds_change),
                    "slowest_stage": c.slowest or None,
                    "memory_change_bytes": c.memory_change_bytes,
                    "fits": c.fits,
                    "shortfall_bytes": c.shortfall_bytes,
                    "host_shortfall_bytes": c.host_shortfall_bytes,
                }
                for c in changes
            ],
            "sources": {
                "time_s": dict(time_sources or {}),
                "constants": {name: constant_document(c) for name, c in constants_of(problem, constants).items()},
                "gpu": [{"name": n, "value": v, "origin": o, "source": s} for n, v, o, s in gpu_source_rows(problem)],
            }
            if sources
            else None,
        },
    )
