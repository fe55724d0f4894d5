"""A strategy per layer, on one stage: what engines that wrap every layer by itself can run.

For each micro-batch over all ranks the layers' options form a chain with costs between neighbours and one memory
budget; :func:`autoparallel_core.solve.chain.cheapest_chain` solves it exactly. Options of a layout that another beats
in time and memory are left out first. Bytes that are held once whatever the layers (the layer being recomputed, the
largest matrix) are budgeted for the largest option that is allowed; every limit on them is tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from autoparallel_core.planners.exhaustive import grid_search
from autoparallel_core.planners.two_level.cells import FULL
from autoparallel_core.planners.two_level.layer_options import LayerOptions, layer_options
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, PlannedStage, SearchResult
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.solve.chain import Chain, cheapest_chain
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.rule import Rule

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

NAME = "two_level"
CACHED = "allocator_slack"
MOST = 96
"""Options per layer that are kept for one micro-batch, fastest first."""


@frozen(eq=False)
class LayerChoice:
    """An option per node: embedding, layers, head."""

    options: LayerOptions
    choice: tuple[int, ...]
    step_s: float
    """By the layers' own costs, without what is paid once per step."""
    uniform_s: float
    """Of the best single option, by the same costs; infinite where none fits."""
    uniform: int


def layer_search(
    problem: Problem, space: Space, rules: tuple[Rule, ...], *, host: Host | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SearchResult:  # fmt: skip
    """The best strategy per layer on a single stage, beside the grid's best for all layers.

    Raises what :func:`grid_search` raises.
    """
    started = time.perf_counter()
    grid = grid_search(problem, space, rules, host=host, top=1, progress=progress)
    groups = _by_micro_batch(problem, space, rules)
    found: LayerChoice | None = None
    priced = [layer_options(problem, batch, host) for batch in groups]
    # The best single option of all micro-batches first: it bounds every mixture.
    for options in sorted(priced, key=LayerOptions.uniform_s):
        better = best_layers(options, np.inf if found is None else found.step_s)
        found = better or found
    plans = [] if found is None else [_plan(problem, found, host)]
    base = grid.plans[0] if grid.plans else None
    if base is not None and (not plans or base.cost.total_s <= plans[0].cost.total_s):
        plans = [evolve(base, reasons=("no mixture of strategies on one stage beats one strategy for all layers", *base.reasons))]
    elif plans and base is not None:
        gain = base.cost.total_s / plans[0].cost.total_s - 1
        plans[0] = evolve(
            plans[0], reasons=(f"{gain:+.1%} against one strategy for all layers, {base.notation}", *plans[0].reasons)
        )
    return evolve(
        grid,
        plans=tuple(plans),
        fitting=grid.fitting + (found is not None),
        nearest_miss=None if plans else grid.nearest_miss,
        planner=NAME,
        elapsed_s=time.perf_counter() - started,
        assumptions=(*grid.assumptions, *_words(problem, groups)),
        baseline=base,
    )


def _words(problem: Problem, groups: list[StrategyBatch]) -> tuple[str, ...]:
    if "strategy_by_layer" in problem.engine.abilities:
        runs = f"a strategy per layer: {problem.engine.abilities['strategy_by_layer'].how}"
    else:
        runs = f"{problem.engine.name} runs one strategy for all layers; this is what an engine with one per layer would do"
    options = ", ".join(f"{len(b):,}" for b in groups[:4])
    return (
        runs,
        f"one stage, the same micro-batch for all layers; {len(groups)} micro-batches with {options} … options per layer",
        "a layer's time is the evaluator's for its strategy; changes of layout between layers cost an all-to-all each way",
    )


def _by_micro_batch(problem: Problem, space: Space, rules: tuple[Rule, ...]) -> list[StrategyBatch]:
    """Strategies without a pipeline, by sequences per micro-batch over all ranks."""
    kept = []
    for batch in enumerate_space(problem, space, rules):
        plain = (batch.pp == 1) & (batch.recompute_layers == 0) & (batch.offload == 0) & (batch.sp == (batch.tp > 1))
        kept.append(batch.take(plain))
    every = StrategyBatch.concat(kept)
    size = every.mbs * every.dp
    return [every.take(size == n) for n in np.unique(size)]


def best_layers(options: LayerOptions, below_s: float = np.inf) -> LayerChoice | None:
    """The best choice among strategies of one micro-batch; None when nothing fits, or nothing is below ``below_s``."""
    options = _useful(options)
    cost = options.of_nodes(options.first_s, options.layer_s, options.last_s)
    memory = options.of_nodes(options.first_bytes, options.layer_bytes, options.last_bytes)
    budget, constant, live = float(options.model.budget.min()), options.model.constant, options.live
    alone = sum(cost, np.zeros(len(constant)))
    fits = sum(memory, np.zeros(len(constant))) + constant + live <= budget
    single = np.where(fits, alone, np.inf)
    uniform = int(single.argmin()) if len(single) else -1
    best: tuple[float, tuple[int, ...]] | None = None
    if len(single) and single[uniform] < below_s:  # one option for all is a choice, too: others have to be better
        best = float(single[uniform]), (uniform,) * len(cost)
    for held in np.unique(constant):
        for once in np.unique(live[constant <= held]):
            rows = np.flatnonzero((constant <= held) & (live <= once))
            change = options.change_s[np.ix_(rows, rows)]
            chain = Chain.of([x[rows] for x in cost], [x[rows] for x in memory], [change] * (len(cost) - 1))
            found = cheapest_chain(chain, budget - float(held) - float(once), below=below_s if best is None else best[0])
            if found is not None:
                best = found.cost, tuple(int(rows[k]) for k in found.choice)
    if best is None:
        return None
    return LayerChoice(options, best[1], best[0], float(single[uniform]), uniform)


def _useful(options: LayerOptions) -> LayerOptions:
    """Options that no other of their layout beats in time and bytes on every node, the fastest first, at most ``MOST``."""
    b = options.batch
    layout = np.stack([b.tp, b.cp, b.dp, b.sp], axis=1)
    ends = (options.first_s, options.last_s, options.first_bytes, options.last_bytes, options.model.constant + options.live)
    measures = np.concatenate([options.layer_s, options.layer_bytes, np.stack(ends, axis=1)], axis=1)
    keep: list[int] = []
    for i in np.argsort(options.layer_s.sum(axis=1), kind="stable"):
        same = [k for k in keep if (layout[k] == layout[i]).all()]
        if not any((measures[k] <= measures[i] * (1 + 1e-12)).all() for k in same):
            keep.append(int(i))
    return options.take(np.array(keep[:MOST], dtype=np.int64))


def _plan(problem: Problem, found: LayerChoice, host: Host | None) -> Plan:
    """The plan: the evaluator's price of the most used strategy, with the difference that the other layers make."""
    options = found.options
    layers = found.choice[1:-1]
    usual = max(set(layers), key=lambda k: (layers.count(k), -k))
    reference = explain_strategy(problem, options.batch[usual], host)
    same = _chain_s(options, (usual,) * len(found.choice))
    seconds = dict(reference.cost.seconds) | {"layers of other strategies": found.step_s - same}
    total = sum(seconds.values())
    scale = reference.cost.total_s / total
    assert reference.training is not None
    figures = evolve(
        reference.training,
        step_s=total,
        tokens_per_s_per_gpu=reference.training.tokens_per_s_per_gpu * scale,
        mfu=reference.training.mfu * scale,
    )
    held = _bytes(options, found.choice)
    memory = _memory(reference, held)
    return evolve(
        reference,
        cost=CostBreakdown({c: s for c, s in seconds.items() if s}),
        memory=memory,
        training=figures,
        verdict="fits" if held <= 0.9 * float(options.model.budget.min()) else "tight",
        stages=_runs(problem, options, found.choice, held),
        reasons=(),
    )


def _memory(reference: Plan, held: float) -> MemoryBreakdown:
    """The reference's, with other allocated bytes; cached blocks give way where the GPU is full."""
    stage, capacity = reference.memory.stages[0], reference.memory.capacity_bytes
    cached = stage.overhead.get(CACHED, 0.0)
    room = capacity - held - (sum(stage.overhead.values()) - cached)
    overhead = {**stage.overhead, CACHED: min(cached, max(room, 0.0))}
    stage = evolve(stage, bytes={"all layers": held}, overhead=overhead, squeezed_bytes=cached - overhead[CACHED])
    return evolve(reference.memory, stages=(stage,), reserved_bytes=stage.peak_bytes)


def _chain_s(options: LayerOptions, choice: tuple[int, ...]) -> float:
    cost = options.of_nodes(options.first_s, options.layer_s, options.last_s)
    total = sum(float(x[k]) for x, k in zip(cost, choice, strict=True))
    return total + sum(float(options.change_s[a, b]) for a, b in pairwise(choice))


def _bytes(options: LayerOptions, choice: tuple[int, ...]) -> float:
    memory = options.of_nodes(options.first_bytes, options.layer_bytes, options.last_bytes)
    total = sum(float(x[k]) for x, k in zip(memory, choice, strict=True))
    return total + float(max(options.live[k] for k in choice) + max(options.model.constant[k] for k in choice))


def _runs(problem: Problem, options: LayerOptions, choice: tuple[int, ...], held: float) -> tuple[PlannedStage, ...]:
    """Neighbouring layers of one strategy, as entries of stage 0."""
    kinds = [layer.kind for layer in problem.arch.layers]
    out, at = [], 0
    runs = [(k, len(list(g))) for k, g in groupby(choice[1:-1])]
    for r, (k, n) in enumerate(runs):
        strategy = options.batch[k]
        classes: dict[str, int] = {}
        for kind in kinds[at : at + n]:
            classes[kind] = classes.get(kind, 0) + 1
        m = float(options.model.micro_batches[k])
        out.append(
            PlannedStage(
                stage=0,
                layers=(n,),
                first_layers=(at,),
                classes=classes,
                recomputed=dict(classes) if strategy.recompute == FULL else {},
                strategy=strategy,
                gpu=problem.cluster.gpu.name,
                gpus=problem.cluster.n_gpus,
                time_s=float(options.layer_s[k, options.class_of_layer[at : at + n]].sum()) / m,
                memory_bytes=held,
                capacity_bytes=problem.cluster.gpu.memory_bytes,
                embedding=r == 0,
                head=r == len(runs) - 1,
            )
        )
        at += n
    return tuple(out)
