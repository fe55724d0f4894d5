"""Plans over several kinds of GPU: each kind's stages priced by the evaluator as that kind, put together by events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from autoparallel_core.cost.model_flops import trained_flops_per_token
from autoparallel_core.cost.stages import StageLayout, laid_out
from autoparallel_core.errors import SpecError
from autoparallel_core.planners.two_level.kind_cuts import KindCut
from autoparallel_core.planners.two_level.simulated import SIMULATED, chunk_seconds
from autoparallel_core.planners.two_level.stage_model import PIPELINE_CAUSES, StageModel
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.explain import plan_at
from autoparallel_core.search.result import (
    CostBreakdown,
    Plan,
    PlannedStage,
    SearchResult,
    StageMemory,
    TrainingFigures,
    Verdict,
)
from autoparallel_core.solve.schedule import makespan
from autoparallel_core.spec.problem import Problem

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]


def kind_plan(problem: Problem, models: Sequence[StageModel], i: int, cut: KindCut, host: Host | None) -> Plan:
    """The plan of strategy ``i`` under a cut."""
    batch = models[0].batch.take(np.array([i]))
    kinds = np.array(cut.kinds)
    whole = _every_stage(models[0].problem, cut)
    prices = {
        k: evaluate(models[k].problem, batch, host, layout=_subset(whole, np.flatnonzero(kinds == k)))
        for k in sorted(set(cut.kinds))
    }
    slowest = max(prices, key=lambda k: float(_slowest_s(prices[k])))
    seconds = _seconds(models, i, cut, prices, slowest)
    total = sum(seconds.values())
    tokens = problem.training.tokens_per_step
    flops = trained_flops_per_token(problem) * tokens / total
    peak = sum(k.n_gpus * k.gpu.peak(k.gpu.wide_dtype) for k in problem.cluster.kinds)
    deciding = max(prices, key=lambda k: float(prices[k].reserved_bytes[0] / prices[k].capacity_bytes))
    plans = {k: plan_at(models[k].problem, e, 0) for k, e in prices.items()}
    memory = {s.stage: s for p in plans.values() for s in p.memory.stages}
    return Plan(
        strategy=batch[0],
        cost=CostBreakdown(seconds),
        memory=plans[deciding].memory,  # of the kind whose stages come nearest to their memory
        verdict=_verdict(prices),
        training=TrainingFigures(
            step_s=total,
            tokens_per_s_per_gpu=tokens / total / problem.cluster.n_gpus,
            mfu=flops / peak,
            micro_batches=int(models[0].micro_batches[i]),
            layers_per_stage=tuple(int(n) for n in np.reshape(cut.layers, (-1, len(cut.kinds))).sum(axis=0)),
            bubble_fraction=seconds.get("bubble", 0.0) / total,
        ),
        stages=_stages(problem, models, i, cut, memory),
    )


def _every_stage(problem: Problem, cut: KindCut) -> StageLayout:
    """The layout with all stages listed, equal ones too: two of them may be on different kinds."""
    p = len(cut.kinds)
    layout = laid_out(problem.arch, p, cut.layers, cut.full)
    ends = np.cumsum(cut.layers)
    of_layer = np.zeros((problem.arch.num_layers + 1, layout.counts.shape[1]))
    for c, (_, where) in enumerate(problem.arch.layer_classes()):
        of_layer[np.array(where) + 1, c] = 1.0
    before = np.cumsum(of_layer, axis=0)
    at = np.arange(p)
    return evolve(
        layout,
        counts=(before[ends] - before[ends - np.array(cut.layers)]).reshape(-1, p, before.shape[1]).sum(axis=0),
        first=(at == 0).astype(np.float64),
        last=(at == len(at) - 1).astype(np.float64),
        index=at.astype(np.float64),
        full_counts=np.array(cut.full, dtype=np.float64),
    )


def _subset(layout: StageLayout, rows: NDArray[np.int64]) -> StageLayout:
    assert layout.full_counts is not None
    return evolve(
        layout,
        counts=layout.counts[rows],
        first=layout.first[rows],
        last=layout.last[rows],
        index=layout.index[rows],
        full_counts=layout.full_counts[rows],
    )


def _slowest_s(e: Evaluation) -> float:
    assert e.training is not None
    return float(e.training.slowest_stage_s[0])


def _seconds(models: Sequence[StageModel], i: int, cut: KindCut, prices: dict[int, Evaluation], slowest: int) -> dict[str, float]:
    """The slowest stage's causes, the events' bubble, and of reduction and optimizer the kind that takes longer."""
    rest = {
        k: {c: float(v[0]) for c, v in e.seconds.items() if c not in PIPELINE_CAUSES and c != "straggler"}
        for k, e in prices.items()
    }
    outside = max(rest.values(), key=lambda r: sum(r.values()))
    seconds = {c: float(prices[slowest].seconds[c][0]) for c in PIPELINE_CAUSES if c in prices[slowest].seconds}
    busy = sum(s for c, s in seconds.items() if c != "bubble")
    pipeline = _pipeline_s(models, i, cut)
    if pipeline is not None:
        seconds["bubble"] = max(pipeline - busy, 0.0)
    seconds |= outside
    seconds["straggler"] = sum(seconds.values()) * float(max(m.slow[i] for m in models) - 1)
    return {c: s for c, s in seconds.items() if s}


def _pipeline_s(models: Sequence[StageModel], i: int, cut: KindCut) -> float | None:
    """Seconds of the pipeline by events; None for schedules without."""
    schedule = models[0].problem.software.pipeline_schedule
    p, v, micro_batches = len(cut.kinds), len(cut.layers) // len(cut.kinds), int(models[0].micro_batches[i])
    if schedule not in SIMULATED or (v > 1 and micro_batches % p):
        return None
    forward, backward = np.zeros(len(cut.layers)), np.zeros(len(cut.layers))
    full = np.array(cut.full, dtype=np.float64)
    for k, m in enumerate(models):
        f, b = chunk_seconds(m, i, cut.layers, full)
        mine = np.tile(cut.kinds, v) == k
        forward, backward = np.where(mine, f, forward), np.where(mine, b, backward)
    send = max(float(m.p2p_s[i]) for m in models) / (2 * v)
    assert schedule == "1f1b" or schedule == "gpipe"  # noqa: PLR1714  (narrows the type)
    return makespan(forward + send, backward + send, p, micro_batches, schedule=schedule)


def _verdict(prices: dict[int, Evaluation]) -> Verdict:
    if not all(e.fits[0] for e in prices.values()):
        return "does not fit"
    return "tight" if any(e.tight[0] for e in prices.values()) else "fits"


def _stages(
    problem: Problem, models: Sequence[StageModel], i: int, cut: KindCut, memory: dict[int, StageMemory]
) -> tuple[PlannedStage, ...]:
    strategy = models[0].batch[i]
    classes = [layer.kind for layer, _ in problem.arch.layer_classes()]
    full = np.array(cut.full, dtype=np.float64)
    times = [np.add(*chunk_seconds(m, i, cut.layers, full)) for m in models]
    ends, p = np.cumsum(cut.layers), len(cut.kinds)
    chunks = models[0].prefix[ends] - models[0].prefix[ends - np.array(cut.layers)]
    counts = chunks.reshape(-1, p, chunks.shape[1]).sum(axis=0)
    held, first = (np.reshape(a, (-1, p)) for a in (cut.layers, ends - np.array(cut.layers)))
    out = []
    for s, k in enumerate(cut.kinds):
        gpu = problem.cluster.kinds[k].gpu
        out.append(
            PlannedStage(
                stage=s,
                layers=tuple(int(n) for n in held[:, s]),
                first_layers=tuple(int(n) for n in first[:, s]),
                classes=_by_kind(classes, counts[s]),
                recomputed=_by_kind(classes, cut.full[s]),
                strategy=strategy,
                gpu=gpu.name,
                gpus=strategy.tp * strategy.cp * strategy.dp,
                time_s=float(times[k].reshape(-1, p)[:, s].sum()),
                memory_bytes=memory[s].total_bytes,
                capacity_bytes=gpu.memory_bytes,
                embedding=s == 0,
                head=s == len(cut.kinds) - 1,
            )
        )
    return tuple(out)


def _by_kind(classes: Sequence[str], counts: Sequence[int]) -> dict[str, int]:
    out: dict[str, int] = {}
    for kind, n in zip(classes, counts, strict=True):
        if n:
            out[kind] = out.get(kind, 0) + int(n)
    return out


def against_parts(
    problem: Problem, plan: Plan, base: Plan | None, alone: Callable[[Problem], SearchResult] | None
) -> tuple[str, ...]:
    """What the stages' sizes gain, and what every kind would reach by itself."""
    out = []
    by_kind: dict[str, list[int]] = {}
    for s in plan.stages:
        by_kind.setdefault(s.gpu, []).append(s.n_layers)
    out.append(
        "layers per stage: " + "; ".join(f"{sum(n) / len(n):.3g} on {gpu} ({len(n)} stages)" for gpu, n in by_kind.items())
    )
    if base is not None:
        gain = plan.throughput / base.throughput - 1
        out.insert(0, f"{gain:+.1%} against the best pipeline with stages of the usual size on the same GPUs, {base.notation}")
    else:
        out.insert(0, "stages of the usual size do not fit on the GPUs of both kinds")
    for kind in problem.cluster.kinds if alone is not None else ():
        assert alone is not None
        try:
            own = alone(problem.with_cluster(kind))
        except SpecError:
            continue  # this part cannot be split for the batch; nothing to compare
        name = f"the {kind.n_gpus:,} {kind.gpu.name} alone"
        if not own.plans:
            out.append(f"{name} cannot hold the model")
            continue
        rate = own.plans[0].throughput * kind.n_gpus
        both = plan.throughput * problem.cluster.n_gpus
        hint = "; leave the others out" if rate > both else ""
        out.append(f"{name} would reach {rate:,.0f} tokens/s with {own.plans[0].notation}; all together {both:,.0f}{hint}")
    return tuple(out)
