"""A sharding per operator: a table of the products of each part, what it costs, and plans of one idea beside it."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from attrs import asdict
from rich.console import Console

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import bullets, heading, put
from autoparallel_core.report.layout import Column, print_bands
from autoparallel_core.search.result import OperatorAnswer, OperatorRow


def operators_document(answer: OperatorAnswer) -> dict[str, Any]:
    """The answer as JSON."""
    return asdict(answer) | {"others": [{"plan": name, "step_s": seconds} for name, seconds in answer.others]}


def print_operators(console: Console, answer: OperatorAnswer) -> None:
    """Print the sharding of every product, by part of the model."""
    mesh = " × ".join(map(str, answer.mesh))
    rounds = fmt.plural(answer.micro_batches, "micro-batch", "micro-batches")
    heading(console, f"A sharding per operator, on a mesh of {mesh} GPUs, {rounds}")
    for (part, layers), rows in groupby(answer.rows, key=lambda r: (r.part, r.layers)):
        put(console, f"{part}{f' ({layers} layers, all alike)' if layers > 1 else ''}", style="bold")
        print_bands(console, _columns(list(rows)))
        console.print()
    proven = "optimal" if answer.gap <= _CLOSED else f"within {answer.gap:.1%} of the optimum"
    put(console, f"{fmt.seconds(answer.step_s)} of a step for collectives and element-wise passes ({proven}):")
    bullets(console, [f"{name}: {fmt.seconds(s)}" for name, s in sorted(answer.seconds.items(), key=lambda kv: -kv[1])])
    bullets(console, [_other(name, seconds, answer.step_s) for name, seconds in answer.others])
    put(console, f"Memory: {fmt.memory(answer.held_bytes)} of {fmt.memory(answer.budget_bytes)} per GPU.")
    bullets(console, answer.notes)


_CLOSED = 1e-6


def _columns(rows: list[OperatorRow]) -> list[Column]:
    return [
        Column("operator", [r.operator for r in rows], right=False, words="{}"),
        Column("scheme", [scheme_words(r.scheme) for r in rows], right=False, words="{}"),
        Column("work split by", [r.work for r in rows], right=False, words="work by {}"),
        Column("weights", [r.weights or "–" for r in rows], right=False, words="weights {}"),
        Column("optimizer state", [r.state or "–" for r in rows], right=False, words="state {}"),
        Column("then", [r.moves or "–" for r in rows], right=False, words="then {}"),
    ]


def scheme_words(words: tuple[str, ...]) -> str:
    """``data × columns``; one word where all dimensions do the same."""
    return words[0] if len(set(words)) == 1 else " × ".join(words)


def _other(name: str, seconds: float | None, best: float) -> str:
    if seconds is None:
        return f"{name}: does not fit, or does not divide"
    ratio = seconds / best
    return f"{name}: {fmt.seconds(seconds)}" + (f", {ratio:.3g} times as much" if ratio > 1 + 1e-3 else ", the same")
