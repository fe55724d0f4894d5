"""Stages that were chosen one by one: a table, a picture of time and memory by stage, and the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from attrs import asdict
from rich.console import Console
from rich.text import Text

from autoparallel_core.report import format as fmt
from autoparallel_core.report.bars import bar
from autoparallel_core.report.console import heading, put
from autoparallel_core.report.layout import Column, print_bands
from autoparallel_core.search.result import Plan, PlannedStage, SearchResult

_BAR = 24


def stage_document(stage: PlannedStage) -> dict[str, Any]:
    """One stage; the strategy in compact notation."""
    return asdict(stage, recurse=False) | {
        "layers": list(stage.layers),
        "first_layers": list(stage.first_layers),
        "classes": dict(stage.classes),
        "recomputed": dict(stage.recomputed),
        "strategy": str(stage.strategy),
    }


def print_stages(console: Console, result: SearchResult) -> None:
    """Print the stages of the best plan; nothing when they are the usual ones."""
    plans = [p for p in result.plans if p.verdict != "does not fit"]
    if plans and plans[0].stages:
        print_plan_stages(console, plans[0], "Stages of #1")


def print_plan_stages(console: Console, plan: Plan, title: str) -> None:
    """Print the stages of a plan, which were chosen one by one."""
    groups, alike = _alike(plan.stages), {(s.gpus, s.gpu) for s in plan.stages}
    each = next(f", each of {gpus:,} {gpu}" for gpus, gpu in alike) if len(alike) == 1 else ""
    heading(console, title + each)
    print_bands(console, _columns(groups))
    console.print()
    _picture(console, groups, plan)


def _alike(stages: Sequence[PlannedStage]) -> list[list[PlannedStage]]:
    """Neighbours that differ in nothing but where they begin and how much memory their place costs."""

    def key(s: PlannedStage) -> tuple[Any, ...]:
        return s.layers, tuple(s.classes.items()), tuple(s.recomputed.items()), s.strategy, s.gpu, s.gpus, s.embedding, s.head

    return [list(g) for _, g in groupby(stages, key)]


def _names(groups: Sequence[Sequence[PlannedStage]]) -> list[str]:
    """Numbers of the stages; ranges of layers where several entries share a stage."""
    if len({s.stage for g in groups for s in g}) < sum(map(len, groups)):
        return [f"layers {g[0].first_layers[0]}–{g[-1].first_layers[0] + g[-1].n_layers - 1}" for g in groups]
    return [str(g[0].stage) if len(g) == 1 else f"{g[0].stage}–{g[-1].stage}" for g in groups]


def _columns(groups: Sequence[Sequence[PlannedStage]]) -> list[Column]:
    one = [g[0] for g in groups]
    columns = [
        Column("stage", _names(groups), right=False, words="stage {}"),
        Column("layers", [_layers(s.layers) for s in one], right=False, words="{} layers each"),
        Column("holds", [_holds(s) for s in one], right=False, words="{}"),
        Column("recompute", [_counts(s.recomputed) or "–" for s in one], right=False, words="recomputes {}"),
        Column("time/mb", [fmt.seconds(s.time_s) for s in one], words="{} per micro-batch"),
        Column("memory", [f"{fmt.gigabytes(max(s.memory_bytes for s in g))} GB" for g in groups], words="{}"),
    ]
    if len({(s.gpus, s.gpu) for s in one}) > 1:
        columns.append(Column("GPUs", [f"{s.gpus:,} {s.gpu}" for s in one], right=False, words="{}"))
    if any(s.offloaded for s in one):
        columns.append(Column("in host memory", [f"{s.offloaded} layers" for s in one], words="activations of {} in host memory"))
    if len({s.strategy for s in one}) > 1:
        columns.append(Column("strategy", [_degrees(s) for s in one], right=False, words="{}"))
    return columns


def _layers(layers: Sequence[int]) -> str:
    """``4``, or ``2+2`` for two chunks."""
    return str(layers[0]) if len(layers) == 1 else f"{sum(layers)} ({'+'.join(map(str, layers))})"


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items())


def _holds(stage: PlannedStage) -> str:
    parts = ["embedding"] * stage.embedding + [_counts(stage.classes)] * bool(stage.classes) + ["head"] * stage.head
    return ", ".join(parts)


def _degrees(stage: PlannedStage) -> str:
    return " ".join(w for w in str(stage.strategy).split() if not w.startswith(("pp", "mbs", "recompute")))


def _picture(console: Console, groups: Sequence[Sequence[PlannedStage]], plan: Plan) -> None:
    """A bar of time against the slowest stage and one of memory against the GPU's, side by side."""
    slowest = max(s.time_s for s in plan.stages)
    names = _names(groups)
    pad = max(len(n) for n in names)
    for name, group in zip(names, groups, strict=True):
        s, memory = group[0], max(x.memory_bytes for x in group)
        time = bar(s.time_s / slowest, _BAR)
        held = bar(memory / s.capacity_bytes, _BAR)
        line = Text(f"{name:>{pad}}  ")
        line.append(f"{time:<{_BAR}}", style="blue").append("|  ").append(f"{held:<{_BAR}}", style="green").append("|")
        console.print(line, soft_wrap=True)
    put(console, f"{'':>{pad}}  time of one micro-batch   memory of one GPU", style="dim")
