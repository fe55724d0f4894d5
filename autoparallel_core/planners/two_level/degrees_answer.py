"""Stages of different degrees as an answer: beside the best pipeline whose stages share their degrees."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import evolve

from autoparallel_core.cost.model_flops import trained_flops_per_token
from autoparallel_core.errors import SpecError
from autoparallel_core.planners.two_level.abilities import abilities_of
from autoparallel_core.planners.two_level.degrees import AT_ONCE, WAYS, DegreesPlan, best_degrees
from autoparallel_core.planners.two_level.kinds import as_if_all
from autoparallel_core.search.result import (
    CostBreakdown,
    MemoryBreakdown,
    Plan,
    PlannedStage,
    SearchResult,
    StageMemory,
    TrainingFigures,
)
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space

if TYPE_CHECKING:
    from autoparallel_core.host import Host

NAME = "two_level"


def degrees_search(
    problem: Problem, space: Space, *, host: Host | None, top: int, usual: Callable[[], SearchResult]
) -> SearchResult:  # fmt: skip
    """``usual``'s answer with the best plan of stages of different degrees in front, where it is faster.

    Raises:
        SpecError: the engine cuts stages evenly, or the schedule is not 1F1B.
    """
    started = time.perf_counter()
    able = abilities_of(problem)
    if not able.uneven:
        raise SpecError(f"{able.words[0]}; stages of different degrees differ in size: name an engine that takes such stages")
    if problem.software.pipeline_schedule != "1f1b":
        raise SpecError("stages of different degrees are planned for 1F1B; leave --granularity out for other schedules")
    kinds = problem.cluster.kinds
    parts = [problem.with_cluster(as_if_all(problem.cluster, k)) for k in kinds] if kinds else [problem]
    gpus = [k.n_gpus for k in kinds] if kinds else [problem.cluster.n_gpus]
    found, considered = best_degrees(parts, gpus, space, host, "layer" if able.recompute == "layer" else "stage")
    answer = usual()
    base = answer.plans[0] if answer.plans else None
    words = _words(problem, considered)
    if not found or (base is not None and found[0].step_s >= base.cost.total_s):
        why = "no pipeline with stages of different degrees is faster" if base is not None else "such stages do not fit either"
        plans = list(answer.plans)
        plans[:1] = [evolve(p, reasons=(why, *p.reasons)) for p in plans[:1]]
    else:
        plan = _plan(problem, found[0])
        gain = (
            f"{base.cost.total_s / plan.cost.total_s - 1:+.1%} against stages of the same degrees, {base.notation}"
            if base
            else ""
        )
        plans = [evolve(plan, reasons=tuple(s for s in (gain, _degrees(plan)) if s)), *answer.plans]
    return evolve(
        answer,
        plans=tuple(plans[:top]),
        fitting=answer.fitting + len(found),
        nearest_miss=None if plans else answer.nearest_miss,
        planner=NAME,
        elapsed_s=time.perf_counter() - started,
        assumptions=(*answer.assumptions, *words),
        baseline=base,
    )


def _words(problem: Problem, considered: int) -> tuple[str, ...]:
    ability = problem.engine.abilities.get("strategy_by_stage")
    runs = (
        f"degrees by stage: {ability.how}"
        if ability is not None
        else f"{problem.engine.name} gives all stages the same degrees; this is what an engine with degrees by stage would do"
    )
    kept = f"of each kind and size the {WAYS} fastest that fit, for {AT_ONCE} numbers of sequences at once, were cut exactly"
    return (
        runs,
        f"{considered:,} ways to run a stage; {kept}",
        "sends between stages of different degrees cost what the slower side's own would",
    )


def _degrees(plan: Plan) -> str:
    """Which degrees run on how many stages."""
    runs: dict[str, int] = {}
    for s in plan.stages:
        words = " ".join(w for w in str(s.strategy).split() if not w.startswith(("pp", "recompute")))
        runs[f"{words} on {s.gpus} {s.gpu}"] = runs.get(f"{words} on {s.gpus} {s.gpu}", 0) + 1
    return "; ".join(f"{n} stage{'s' * (n > 1)} of {what}" for what, n in runs.items())


def _plan(problem: Problem, d: DegreesPlan) -> Plan:
    """A plan; its strategy is the one of most GPUs, the stages have their own."""
    m, slowest = d.micro_batches, max(d.time_s)
    seconds = {
        "slowest_stage": m * slowest,
        "bubble": max(d.pipeline_s - m * slowest, 0.0),
        "reduction and optimizer": d.outside_s,
        "straggler": (d.pipeline_s + d.outside_s) * (d.slow - 1),
    }
    total, tokens = sum(seconds.values()), problem.training.tokens_per_step
    kinds = problem.cluster.kinds or (problem.cluster,)
    peak = sum(k.n_gpus * k.gpu.peak(k.gpu.wide_dtype) for k in kinds)
    flops = trained_flops_per_token(problem) * tokens / total
    stages = tuple(_stage(d, s) for s in range(len(d.ways)))
    strategies = [s.strategy for s in stages]
    # What the budget leaves out (context, libraries) counts as held.
    free = [float(w.model.budget[w.row]) - held for w, held in zip(d.ways, d.held_bytes, strict=True)]
    tightest = min(range(len(stages)), key=lambda s: free[s] / stages[s].capacity_bytes)
    capacity = stages[tightest].capacity_bytes
    tight = free[tightest] < (1 - problem.constant("tight_below")) * capacity
    return Plan(
        strategy=max(strategies, key=lambda s: (sum(x.gpus for x in stages if x.strategy == s), -strategies.index(s))),
        cost=CostBreakdown({c: s for c, s in seconds.items() if s}),
        memory=MemoryBreakdown(
            stages=tuple(StageMemory(s.stage, s.n_layers, {"all layers": s.memory_bytes}) for s in stages),
            capacity_bytes=capacity,
            reserved_bytes=capacity - free[tightest],
        ),
        verdict="tight" if tight else "fits",
        training=TrainingFigures(
            step_s=total,
            tokens_per_s_per_gpu=tokens / total / problem.cluster.n_gpus,
            mfu=flops / peak,
            micro_batches=m,
            layers_per_stage=d.layers,
            bubble_fraction=seconds["bubble"] / total,
        ),
        stages=stages,
    )


def _stage(d: DegreesPlan, s: int) -> PlannedStage:
    way, first, n = d.ways[s], d.first_layers[s], d.layers[s]
    model = way.model
    counts = model.prefix[first + n] - model.prefix[first]
    kinds = [layer.kind for layer, _ in model.problem.arch.layer_classes()]
    return PlannedStage(
        stage=s,
        layers=(n,),
        first_layers=(first,),
        classes=_by_kind(kinds, [int(c) for c in counts]),
        recomputed=_by_kind(kinds, d.full[s]),
        strategy=evolve(model.batch[way.row], pp=len(d.ways)),
        gpu=model.problem.cluster.gpu.name,
        gpus=way.gpus,
        time_s=d.time_s[s],
        memory_bytes=d.held_bytes[s],
        capacity_bytes=model.problem.cluster.gpu.memory_bytes,
        embedding=s == 0,
        head=s == len(d.ways) - 1,
    )


def _by_kind(kinds: list[str], counts: list[int] | tuple[int, ...]) -> dict[str, int]:
    out: dict[str, int] = {}
    for kind, n in zip(kinds, counts, strict=True):
        if n:
            out[kind] = out.get(kind, 0) + n
    return out
