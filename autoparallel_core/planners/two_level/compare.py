"""Why an uneven plan beats the best even one, in sentences."""

from __future__ import annotations

from itertools import groupby

from autoparallel_core.planners.reasons import speed, title
from autoparallel_core.planners.two_level.stage_model import PIPELINE_CAUSES
from autoparallel_core.search.result import Plan, PlannedStage
from autoparallel_core.spec.problem import Problem

_SLOWEST = "what the slowest stage runs"
_SHOWN = 6
"""Changes that are listed."""
_HEAVY = 0.3
"""Layers from which the head is worth a word."""


def against_baseline(problem: Problem, plan: Plan, base: Plan, own: Plan, head_layers: float = 0.0) -> tuple[str, ...]:
    """How much faster ``plan`` is than ``base``, the best with the usual stages, and than ``own``, its strategy with them.

    ``head_layers``: what the head's end takes, in average layers of the strategy.
    """
    if not plan.stages:
        return ("no pipeline with stages chosen one by one beats the usual ones",)
    gain = speed(problem, plan) / speed(problem, base) - 1
    sentences = [f"{gain:+.1%} against the best pipeline with the usual stages, {base.notation}{_why(plan, base)}"]
    if plan.stages[0].offloaded:
        sentences.append(_away(plan))
    elif own.strategy != base.strategy:
        does = "does not fit" if own.verdict == "does not fit" else f"takes {own.cost.total_s:.3g} s"
        sentences.append(f"with the usual stages the same strategy {does}{_why(plan, own)}")
    return tuple(s for s in (*sentences, _moved(plan, own, head_layers), _recompute(plan.stages)) if s)


def _away(plan: Plan) -> str:
    """How many layers keep their activations in host memory, and what that costs."""
    stage = plan.stages[0]
    waits = plan.cost.seconds.get("activation_offload", 0.0)
    cost = f"{waits:.3g} s of waiting for them" if waits else "all copies behind computation"
    return f"activations of {stage.offloaded} of {stage.n_layers} layers wait in host memory, {cost}"


def _why(plan: Plan, other: Plan) -> str:
    """The largest savings among a step's parts; what runs on the slowest stage is one of them, whichever stage that is."""
    mine, theirs = _parts(plan), _parts(other)
    saved = sorted(((theirs.get(c, 0.0) - mine.get(c, 0.0), c) for c in {**theirs, **mine}), reverse=True)[:2]
    named = [f"{s:.3g} s less for {title(c)}" for s, c in saved if s > 1e-3 * plan.cost.total_s]
    return f": {' and '.join(named)}" if named else ""


def _parts(plan: Plan) -> dict[str, float]:
    out: dict[str, float] = {}
    for cause, seconds in plan.cost.seconds.items():
        part = _SLOWEST if cause in PIPELINE_CAUSES and cause != "bubble" else cause
        out[part] = out.get(part, 0.0) + seconds
    return out


def _moved(plan: Plan, own: Plan, head_layers: float) -> str:
    """Which stages hold more or fewer layers than the usual ones of the same strategy."""
    now = [s.n_layers for s in plan.stages]
    usual = list(own.training.layers_per_stage) if own.training else now
    if len(usual) != len(now) or usual == now:
        return ""
    parts = []
    for (was, n), run in groupby(zip(usual, now, plan.stages, strict=True), key=lambda x: x[:2]):
        stages = [x[2] for x in run]
        if was != n:
            names = f"stage {stages[0].stage}" if len(stages) == 1 else f"stages {stages[0].stage}–{stages[-1].stage}"
            parts.append(f"{names} {was}→{n}{_holds(stages[-1])}")
    more = f" and {len(parts) - _SHOWN} more changes" if len(parts) > _SHOWN else ""
    head = f"; the head's end takes as long as {head_layers:.2g} layers" if head_layers > _HEAVY and plan.stages[-1].head else ""
    return f"layers against the usual stages: {', '.join(parts[:_SHOWN])}{more}{head}"


def _holds(s: PlannedStage) -> str:
    return " (beside the head)" if s.head else " (beside the embedding)" if s.embedding else ""


def _recompute(stages: tuple[PlannedStage, ...]) -> str:
    """How recompute falls off along the pipeline."""
    n = [sum(s.recomputed.values()) for s in stages]
    if not any(n) or len(set(n)) == 1:
        return ""
    none = [s.stage for s, k in zip(stages, n, strict=True) if not k]
    rest = f"; none on {len(none)} of {len(n)} stages" if none else ""
    total = sum(s.n_layers for s in stages)
    return f"{sum(n)} of {total} layers recompute, {n[0]} on stage 0 with most micro-batches in flight, {n[-1]} on the last{rest}"
