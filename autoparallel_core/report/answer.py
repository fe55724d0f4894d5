"""The answer to a search: header, ranked strategies, why the first three, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoparallel_core.planners.reasons import notes, speed
from autoparallel_core.report import format as fmt
from autoparallel_core.report.causes import words
from autoparallel_core.report.console import bullets, heading, put
from autoparallel_core.report.header import print_header
from autoparallel_core.report.layout import Column, print_bands, print_figures
from autoparallel_core.report.operators import print_operators
from autoparallel_core.report.outlook import layout_reasons, print_outlook, warning
from autoparallel_core.report.serving import LEGEND, serving_columns
from autoparallel_core.report.stages import print_stages
from autoparallel_core.report.training import training_columns
from autoparallel_core.search.outlook import Outlook
from autoparallel_core.search.result import TIE, Plan, SearchResult
from autoparallel_core.spec.problem import Problem

_REASONED = 3
"""Strategies whose reasons are printed."""
_RULES_SHOWN = 8
_WORTH_SAYING = 0.005
"""Share of the time or memory below which a plugin's cause is not mentioned."""


def columns_of(problem: Problem, plans: Sequence[Plan], *, ranked: bool = True) -> list[Column]:
    """The record columns of the problem's mode."""
    return (
        training_columns(problem, plans, ranked=ranked)
        if problem.mode == "training"
        else serving_columns(problem, plans, ranked=ranked)
    )


def refusals(refused: Mapping[str, int], limit: int | None = None) -> str:
    """``1,204 refused: 812 heads % tp, 392 …``, the most frequent rules first."""
    total = sum(refused.values())
    by_count = sorted(refused.items(), key=lambda kv: (-kv[1], kv[0]))
    shown = by_count[:limit]
    text = ", ".join(f"{n:,} {rule}" for rule, n in shown)
    if rest := by_count[len(shown) :]:
        text += f", {sum(n for _, n in rest):,} by {len(rest)} other rules"
    return f"{total:,} refused: {text}" if total else "none refused"


def search_line(result: SearchResult) -> str:
    """How much was looked at."""
    plural = "strategy" if result.enumerated == 1 else "strategies"
    return (
        f"{result.planner} planner · {result.enumerated:,} {plural} · {result.evaluated:,} legal and priced · "
        f"{result.fitting:,} fit · {fmt.seconds(result.elapsed_s)}"
    )


def chosen_lines(result: SearchResult) -> list[tuple[str, str]]:
    """Why the planner was chosen, where nobody named one."""
    if not result.chosen:
        return []
    other = {"grid": "two_level", "two_level": "grid"}.get(result.planner)
    instead = f" (--planner {other})" if other and not result.problem.cluster.kinds else ""
    return [("Planner", f"{result.planner}, chosen by itself: {result.chosen}{instead}")]


def assumptions_of(result: SearchResult) -> tuple[str, ...]:
    """What the question and the search assumed, each once."""
    return tuple(dict.fromkeys((*result.problem.assumptions, *result.assumptions)))


def engine_changes(blame: Mapping[str, str], plan: Plan) -> list[str]:
    """Causes of time and memory that plugins added or corrected, with what they come to in a plan, where that is worth saying."""
    out = []
    for cause, plugin in blame.items():
        seconds, amount = plan.cost.seconds.get(cause, 0.0), plan.memory.deciding.bytes.get(cause, 0.0)
        if abs(seconds) >= _WORTH_SAYING * plan.cost.total_s > 0:
            out.append(f"{words(cause)}: {fmt.seconds(seconds)} in #1 after what plugin {plugin} says")
        if abs(amount) >= _WORTH_SAYING * plan.memory.allocated_bytes > 0:
            out.append(f"{words(cause)}: {fmt.memory(amount)} in #1 after what plugin {plugin} says")
    return out


def print_answer(
    console: Console,
    result: SearchResult,
    parameters: Mapping[str, Any],
    *,
    pareto: bool = False,
    min_nodes: str | None = None,
    outlook: Outlook | None = None,
) -> None:
    """Print everything about a result that has fitting strategies; ``outlook`` is that of a serving answer."""
    problem = result.problem
    extra = [("Search", search_line(result)), *chosen_lines(result)] + ([("Nodes", min_nodes)] if min_nodes else [])
    plans = [p for p in result.plans if p.verdict != "does not fit"]
    about = [*(warning(plans[0], outlook.usable) if outlook else ()), *notes(problem, plans[0], plans)]
    print_header(console, problem, parameters, assumptions=assumptions_of(result), extra=extra, notes=about, plans=plans)
    heading(console, _title(problem, len(plans)))
    print_bands(console, columns_of(problem, plans))
    if problem.mode == "inference":
        put(console, LEGEND, style="dim")
    heading(console, "Why these")
    for i, plan in enumerate(plans[:_REASONED]):
        put(console, f"#{i + 1} {plan.notation}{_lead(problem, plans, i)}", style="bold")
        why = layout_reasons(problem, plan, outlook.without) if outlook and not i else []
        bullets(console, (*why, *plan.reasons, *(plan.serving.notes if plan.serving else ())), indent=3)
    print_stages(console, result)
    if result.operators is not None:
        print_operators(console, result.operators)
    if outlook is not None:
        print_outlook(console, problem, plans[0], outlook, pareto=pareto)
    elif pareto:
        room = "free memory" if problem.mode == "training" else "room for requests"
        heading(console, f"Speed against {room}: no other strategy has more of both")
        print_bands(console, columns_of(problem, result.pareto))
    if changed := engine_changes(result.blame, plans[0]):
        heading(console, "What the engine changed")
        bullets(console, changed)
    console.print()
    put(console, refusals(result.refused, _RULES_SHOWN), style="dim")


def _title(problem: Problem, n: int) -> str:
    what = {
        "training": "tokens/s per GPU",
        "throughput": "output tokens/s per GPU",
        "latency": "end-to-end latency of a request",
        "cost": "output tokens/s per GPU in use",
    }["training" if problem.mode == "training" else problem.inference.goal]
    if n < 2:
        return f"Best by {what}"
    return f"Best {n} by {what} (≈ within {TIE:.0%} of the row above; of such, room in memory first, then the plainer)"


def _lead(problem: Problem, plans: Sequence[Plan], i: int) -> str:
    """How far a plan is ahead of the next one, or behind the first, by what is ranked."""
    if len(plans) < 2:
        return ""
    first, here = speed(problem, plans[0]), speed(problem, plans[i])
    ratio = here / first if i else first / speed(problem, plans[1])
    if abs(ratio - 1) <= TIE:
        return f" · as fast as #{1 if i else 2}"
    return f" · {fmt.change(ratio)} {'against #1' if i else 'over #2'}"


def print_nothing_fits(console: Console, result: SearchResult, parameters: Mapping[str, Any], missing: Sequence[str]) -> None:
    """Print what was asked, the legal strategy that misses by least, and what it would take."""
    problem = result.problem
    miss = [result.nearest_miss] if result.nearest_miss else []
    extra = [("Search", search_line(result)), *chosen_lines(result)]
    print_header(console, problem, parameters, assumptions=assumptions_of(result), extra=extra, plans=miss)
    heading(console, "Nothing fits")
    bullets(console, missing)
    if result.nearest_miss:
        heading(console, "Nearest miss")
        print_figures(console, columns_of(problem, [result.nearest_miss], ranked=False))
        bullets(console, result.nearest_miss.reasons, indent=3)
    console.print()
    put(console, refusals(result.refused), style="dim")
