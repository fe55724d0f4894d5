"""Two plans beside each other, as text: only what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import heading, put
from autoparallel_core.report.layout import Column, print_records
from autoparallel_core.report.module_plan import words

_MOST = 16


def print_diff(console: Console, found: Mapping[str, Any], a: str, b: str, *, every: bool = False) -> None:
    """``a`` and ``b`` name the plans; ``every`` lists all rows rather than the first."""
    put(console, f"a: {a}")
    put(console, f"b: {b}")
    if found["same"]:
        put(console, "The plans are the same.", style="bold")
        return
    _setting(console, found["setting"])
    _figures(console, found["figures"])
    _parameters(console, found["parameters"])
    _collectives(console, found["collectives"], every=every)
    _operators(console, found["operators"], every=every)
    _recompute(console, found["recompute"])


def _setting(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        heading(console, "What was asked")
        print_records(
            console,
            [
                Column("", [_asked_name(r["name"]) for r in rows], right=False),
                Column("a", [_said(r["name"], r["a"]) for r in rows], right=False),
                Column("b", [_said(r["name"], r["b"]) for r in rows], right=False),
            ],
        )


def _asked_name(name: str) -> str:
    return name if " " in name else name.removesuffix("_bytes").replace("_", " ")  # names of pins and inputs stay as they are


def _said(name: str, value: Any) -> str:
    if value is None:
        return "–"
    return fmt.memory(value) if name == "memory_limit_bytes" else str(value)


def _figures(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    heading(console, "Figures")
    print_records(
        console,
        [
            Column("", [_figure_name(r["name"]) for r in rows], right=False),
            Column("a", [_figure(r["name"], r["a"]) for r in rows]),
            Column("b", [_figure(r["name"], r["b"]) for r in rows]),
            Column("b − a", [_change(r) for r in rows]),
        ],
    )


def _figure_name(name: str) -> str:
    group, _, key = name.partition(".")
    if group == "cost":
        return "step" if key == "step_s" else words.COST.get(key, key)
    return "memory at its highest" if key == "peak_bytes" else words.MEMORY.get(key.removesuffix("_bytes"), key)


def _figure(name: str, value: float) -> str:
    return fmt.seconds(value) if name.startswith("cost.") else fmt.memory(value)


def _change(row: Mapping[str, Any]) -> str:
    difference = row["b"] - row["a"]
    sign = "+" if difference >= 0 else "−"
    share = f" ({fmt.change(row['b'] / row['a'])})" if row["a"] else ""
    return f"{sign}{_figure(row['name'], abs(difference))}{share}"


def _parameters(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        heading(console, "Parameters placed otherwise")
        print_records(
            console,
            [
                Column("name", [r["names"] for r in rows], right=False),
                Column("a", [r["a"] or "absent" for r in rows], right=False),
                Column("b", [r["b"] or "absent" for r in rows], right=False),
                Column("per GPU a", [fmt.memory(r["a_local_bytes"]) for r in rows], main=False, words="{} per GPU in a"),
                Column("per GPU b", [fmt.memory(r["b_local_bytes"]) for r in rows], main=False, words="{} in b"),
            ],
        )


def _collectives(console: Console, rows: Sequence[Mapping[str, Any]], *, every: bool) -> None:
    if not rows:
        return
    heading(console, "Collectives that differ")
    shown = rows if every else rows[:_MOST]
    print_records(
        console,
        [
            Column("kind", [words.COLLECTIVES.get(r["kind"], r["kind"]) for r in shown], right=False),
            Column("over", [r["mesh_dim"] for r in shown], right=False),
            Column("a", [_amount(r["a"]) for r in shown]),
            Column("b", [_amount(r["b"]) for r in shown]),
            Column("for", [r["for"] for r in shown], right=False, words="{}", main=False),
        ],
    )
    _more(console, len(rows) - len(shown))


def _amount(amount: Mapping[str, Any]) -> str:
    if not amount["count"]:
        return "none"
    return f"{amount['count']} × {fmt.memory(amount['bytes'] / amount['count'])}, {fmt.seconds(amount['seconds'])}"


def _operators(console: Console, rows: Sequence[Mapping[str, Any]], *, every: bool) -> None:
    if not rows:
        return
    heading(console, "Operators placed otherwise")
    shown = rows if every else rows[:_MOST]
    print_records(
        console,
        [
            Column("node", [r["name"] for r in shown], right=False),
            Column("a", [_placed(r["a"]) for r in shown], right=False, main=False, words="a: {}"),
            Column("b", [_placed(r["b"]) for r in shown], right=False, main=False, words="b: {}"),
        ],
    )
    _more(console, len(rows) - len(shown))


def _placed(side: Mapping[str, Any] | None) -> str:
    return "absent" if side is None else f"{words.placed(side['in'])} → {words.placed(side['out'])}"


def _recompute(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    for which in ("a", "b"):
        names = [r["names"] for r in rows if r["only_in"] == which]
        if names:
            heading(console, f"Run again in the backward only in {which}")
            put(console, ", ".join(names))


def _more(console: Console, n: int) -> None:
    if n > 0:
        put(console, f"and {n} more (--all)", style="dim")
