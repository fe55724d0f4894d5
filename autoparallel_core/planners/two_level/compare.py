"""Why an uneven plan beats the best even one, in sentences."""

from __future__ import annotations

from autoparallel_core.planners.reasons import speed, title
from autoparallel_core.search.result import Plan, PlannedStage
from autoparallel_core.spec.problem import Problem


def against_baseline(problem: Problem, plan: Plan, base: Plan) -> tuple[str, ...]:
    """How much faster ``plan`` is than ``base``, and by what."""
    if plan is base or not plan.stages:
        return ("no uneven pipeline beats the best even one",)
    gain = speed(problem, plan) / speed(problem, base) - 1
    changes = [
        (base.cost.seconds.get(c, 0.0) - plan.cost.seconds.get(c, 0.0), c) for c in {*base.cost.seconds, *plan.cost.seconds}
    ]
    saved = sorted((x for x in changes if x[0] > 0), reverse=True)[:2]
    why = " and ".join(f"{s:.3g} s less for {title(c)}" for s, c in saved)
    return tuple(
        s
        for s in (
            f"{gain:+.1%} against the best even pipeline ({base.notation}): {why}",
            _sizes(plan.stages),
            _recompute(plan.stages),
        )
        if s
    )


def _sizes(stages: tuple[PlannedStage, ...]) -> str:
    """Which stages hold fewer or more layers than most."""
    sizes = [s.n_layers for s in stages]
    usual = max(set(sizes), key=lambda n: (sizes.count(n), n))
    odd = [s for s in stages if s.n_layers != usual]
    if not odd:
        return ""
    parts = [f"stage {s.stage} {s.n_layers}{_holds(s)}" for s in odd[:6]]
    more = f" and {len(odd) - 6} more" if len(odd) > 6 else ""
    return f"most stages hold {usual} layers, {', '.join(parts)}{more}"


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
