"""The verdict on a strategy or on launch files: legal, fits, speed, distance from the best, and what to run instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoparallel_core.report import format as fmt
from autoparallel_core.report.answer import columns_of
from autoparallel_core.report.console import bullets, heading, put
from autoparallel_core.report.document import envelope, plan_document, problem_document
from autoparallel_core.report.header import print_header
from autoparallel_core.report.layout import print_figures
from autoparallel_core.report.serving import kv_use
from autoparallel_core.search.check import Change, Check
from autoparallel_core.search.result import Plan
from autoparallel_core.spec.problem import Problem

_CLOSE = 0.02
"""Within this share of the best, a plan is called as good."""


def print_check(console: Console, result: Check, parameters: Mapping[str, Any], files: Sequence[str]) -> None:
    """Print everything that the check found."""
    problem, launch = result.problem, result.launch
    where = f"{launch.form} in {', '.join(files)}" if launch and files else "given"
    extra = [("Strategy", f"{result.strategy} · {where}")]
    print_header(console, problem, parameters, assumptions=problem.assumptions, extra=extra)
    if launch:
        _print_reading(console, result)
    _print_legality(console, result)
    if result.plan is not None:
        _print_fit(console, result, result.plan)
        heading(console, "Predicted")
        print_figures(console, columns_of(problem, [result.plan], ranked=False)[1:])
        bullets(console, result.plan.serving.notes if result.plan.serving else ())
    _print_instead(console, result)
    _print_best(console, result)


def _print_reading(console: Console, result: Check) -> None:
    launch = result.launch
    assert launch is not None, "only called for files"
    if launch.notes or launch.unset:
        heading(console, "How the files were read")
        bullets(console, launch.notes)
        bullets(console, [f"{name} has no value in the files" for name in launch.unset])
    if launch.unmodelled:
        heading(console, "Flags that matter and are not part of the prediction")
        bullets(console, launch.unmodelled)
    if launch.unknown:
        put(console, f"Flags that are not known here: {', '.join(launch.unknown)}", style="yellow")


def _print_legality(console: Console, result: Check) -> None:
    engine = f"{result.problem.engine.name} {result.problem.engine_version}"
    if not result.violations:
        heading(console, f"Legal: breaks none of {result.rules} rules of {engine}")
        return
    n = len(result.violations)
    heading(console, f"Illegal: {engine} does not run {result.strategy} ({n} reason{'s' if n > 1 else ''})")
    bullets(console, [f"{v.sentence} (rule '{v.rule}'; {v.source})" for v in result.violations])


def _print_fit(console: Console, result: Check, plan: Plan) -> None:
    word = {"fits": "Fits", "tight": "Tight", "does not fit": "Does not fit"}[plan.verdict]
    if result.shortfalls and plan.verdict != "does not fit":
        word = "Does not start"
    heading(console, f"{word}: each GPU has {fmt.memory(plan.memory.capacity_bytes)}")
    bullets(console, result.shortfalls)
    bullets(console, stage_lines(result.problem, plan))


def stage_lines(problem: Problem, plan: Plan) -> list[str]:
    """One line per distinct pipeline stage: what it allocates, what that is made of."""
    out = []
    for s in plan.memory.stages:
        parts = sorted(((k, v) for k, v in s.bytes.items() if v), key=lambda kv: -kv[1])[:3]
        made = ", ".join(f"{k.replace('_', ' ')} {fmt.memory(v)}" for k, v in parts)
        out.append(f"stage {s.stage} ({s.layers} layers): {fmt.memory(s.total_bytes)} allocated ({made}, …)")
    f = plan.serving
    if f is not None and plan.verdict != "does not fit":  # the engine fills its share of the memory whatever is asked
        held = f"{fmt.plural(f.max_concurrency, 'request')} of {problem.inference.context_tokens:,} tokens"
        use = "all" if kv_use(plan) == "full" else kv_use(plan)
        waiting = f", {f.waiting:,.0f} wait" if f.waiting >= 1 else ""
        out.append(f"the KV cache holds {held} at once and {f.concurrency:,.0f} are in flight: {use} of it in use{waiting}")
        return out
    what = "with allocator slack and context" if problem.mode == "training" else "in all"
    out.append(
        f"deciding stage {plan.memory.deciding.stage}: {fmt.memory(plan.memory.reserved_bytes)} {what}, "
        f"{fmt.signed_memory(plan.memory.margin_bytes)} to the limit"
    )
    if plan.memory.host_bytes_per_node:
        out.append(f"host memory: {fmt.memory(plan.memory.host_bytes_per_node)} per node")
    return out


def _print_instead(console: Console, result: Check) -> None:
    if result.status == "ok":
        return
    if result.status == "illegal":
        heading(console, "Nearest legal strategies")
        none = "The engine's space holds no legal strategy for this question."
    else:
        heading(console, "Single changes that fit")
        none = "No single change makes it fit."
    if not result.instead:
        put(console, none)
    bullets(console, [change_line(c) for c in result.instead])


def change_line(change: Change) -> str:
    """``tp4 pp2 dp1: fits, 1,234 tokens/s per GPU``."""
    plan = change.plan
    speed = f", {_speed(plan)}" if plan.verdict != "does not fit" else ""
    how = f" ({change.words})" if change.words else ""
    return f"{plan.notation}{how}: {plan.verdict}{speed}"


def _speed(plan: Plan) -> str:
    return f"{fmt.significant(plan.throughput, 4)} {'output ' if plan.serving else ''}tokens/s per GPU"


def _print_best(console: Console, result: Check) -> None:
    best, share = result.best, result.share_of_best
    if best is None:
        heading(console, "Best found: nothing fits this question")
        return
    heading(console, f"Best found: {best.notation}")
    put(console, f"{_speed(best)}, {best.verdict}.")
    if share is not None:
        put(console, distance_sentence(share))


def distance_sentence(share: float) -> str:
    """How a plan compares with the best found."""
    if share >= 1 - _CLOSE:
        return f"The checked strategy is as good: {fmt.percent(share)} of its speed."
    return f"The checked strategy reaches {fmt.percent(share)} of its speed: the best is {fmt.change(1 / share)} faster."


def check_document(result: Check, model: Mapping[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """The verdict as JSON."""
    launch = result.launch
    return envelope(
        "check",
        {
            "status": result.status,
            **problem_document(result.problem, model),
            "assumptions": list(result.problem.assumptions),
            "files": list(files),
            "launch": {
                "engine": launch.engine,
                "form": launch.form,
                "notes": list(launch.notes),
                "unmodelled": list(launch.unmodelled),
                "unknown": list(launch.unknown),
                "unset": list(launch.unset),
            }
            if launch
            else None,
            "strategy": str(result.strategy),
            "rules_asked": result.rules,
            "violations": [{"rule": v.rule, "sentence": v.sentence, "source": v.source} for v in result.violations],
            "shortfalls": list(result.shortfalls),
            "plan": plan_document(result.plan) if result.plan else None,
            "instead": [
                {
                    "strategy": str(c.plan.strategy),
                    "change": c.words or None,
                    "verdict": c.plan.verdict,
                    "tokens_per_s_per_gpu": c.plan.throughput,
                }
                for c in result.instead
            ],
            "best": plan_document(result.best) if result.best else None,
            "share_of_best": result.share_of_best,
        },
    )
