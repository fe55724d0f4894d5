"""The stage model against the evaluator, and cuts against every cut."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from attrs import evolve
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from two_level_problems import arch, problem

from autoparallel_core.cost.chunk_times import chunk_times
from autoparallel_core.cost.stages import laid_out, stage_layout
from autoparallel_core.planners.two_level.cells import Granularity, StageCells, price_cells
from autoparallel_core.planners.two_level.cut import best_cuts
from autoparallel_core.planners.two_level.interleaved import best_interleaved, level_chunks
from autoparallel_core.planners.two_level.layouts import plan_of, usual_plans
from autoparallel_core.planners.two_level.relaxed import relaxed_step_s
from autoparallel_core.planners.two_level.simulated import chunk_seconds
from autoparallel_core.planners.two_level.stage_model import StageModel, stage_model
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import Strategy, StrategyBatch, parse_strategy

MIXED = arch((4096, 4096, 8192, 2048, 8192, 8192))
HEAVY = arch((4096,) * 8, vocab=65_536)


def batch(text: str) -> StrategyBatch:
    return StrategyBatch.of([parse_strategy(text)])


def priced(p: Problem, text: str, layers: tuple[int, ...], full: tuple[tuple[int, ...], ...]) -> Evaluation:
    b = batch(text)
    return evaluate(p, b, layout=laid_out(p.arch, int(b.pp[0]), layers, full))


def splits(n: int, parts: int) -> list[tuple[int, ...]]:
    """Every way to cut n layers into parts; only the last may hold none (the head alone)."""
    out = []
    for cuts in combinations(range(1, n + 1), parts - 1):
        ends = (0, *cuts, n)
        out.append(tuple(b - a for a, b in pairwise(ends)))
    return out


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_the_stage_model_is_the_evaluator_taken_apart(data: st.DataObject) -> None:
    """Time and memory of any layout with any layers recomputed, for one and for several micro-batches."""
    p = problem(MIXED, 4, batch=data.draw(st.sampled_from([1, 2, 8, 32])))
    pp = data.draw(st.sampled_from([2, 4]))
    tp = data.draw(st.sampled_from([1, 4 // pp]))
    mode = data.draw(st.sampled_from(["", "recompute=selective", "recompute=full"]))
    text = f"tp{tp} pp{pp} dp{4 // pp // tp} zero{data.draw(st.sampled_from([0, 1]))} mbs1 {mode}"
    assume(p.training.global_batch_size % (4 // pp // tp) == 0)
    layers = data.draw(st.sampled_from(splits(6, pp)))
    model = stage_model(p, batch(text))
    ends = np.cumsum(layers)
    counts = model.prefix[ends] - model.prefix[ends - np.array(layers)]
    full = np.array([[data.draw(st.integers(0, int(n))) if mode.endswith("full") else 0 for n in row] for row in counts])
    e = priced(p, text, layers, tuple(map(tuple, full.tolist())))
    at = np.arange(pp)
    time = counts @ model.time[0] + full @ model.again[0]
    time[0] += model.first_s[0]
    time[-1] += model.last_s[0]
    rest = e.total_s[0] / model.slow[0] - sum(e.seconds[c][0] for c in ("bubble", "recompute", "pp_p2p"))
    rest -= sum(
        e.seconds[c][0] for c in e.seconds if c in ("gemm", "attention", "elementwise", "embedding", "loss", "host", "tp_comm")
    )
    with_rest = evolve(model, rest_s=np.array([rest]))
    assert with_rest.step_s(0, time.sum(), time.max()) == pytest.approx(e.total_s[0], rel=1e-9)
    # Memory through the budget: what is left must be what the evaluator leaves on its deciding stage.
    flight = model.flight(0, at)
    held = counts @ model.static[0] + model.constant[0] + flight * ((counts * 1.0) @ model.saved[0] - full @ model.dropped[0])
    held += np.where(full > 0, model.live[0], 0.0).max(axis=1) + flight * model.passing[0]
    held[0] += model.first_static[0]
    held[-1] += model.last_static[0] + model.logits[0] + flight[-1] * model.last_saved[0]
    assert held.max() == pytest.approx(e.allocated_bytes[0], rel=1e-9)
    assert (held.max() <= model.budget[0]) == bool(e.fits[0])


def flat_optimum(p: Problem, text: str, recompute: Granularity) -> float:
    """Every cut with every recompute of the granularity, by the evaluator."""
    pp = parse_strategy(text).pp
    model = stage_model(p, batch(text))
    n_layers, best = p.arch.num_layers, np.inf
    for layers in splits(n_layers, pp):
        ends = np.cumsum(layers)
        counts = model.prefix[ends] - model.prefix[ends - np.array(layers)]
        if "full" not in text:
            choices = [tuple((0,) * counts.shape[1] for _ in range(pp))]
        elif recompute == "layer":
            per_stage = [list(product(*(range(n + 1) for n in row))) for row in counts]
            choices = list(product(*per_stage))
        else:
            begin = ends - np.array(layers)
            first = [
                [tuple(model.prefix[b + k] - model.prefix[b]) for k in range(n + 1)] for b, n in zip(begin, layers, strict=True)
            ]
            choices = list(product(*first)) if recompute == "stage" else [tuple(f[min(recompute, len(f) - 1)] for f in first)]
        for full in choices:
            e = priced(p, text, layers, full)
            if e.fits[0]:
                best = min(best, float(e.total_s[0]))
    return best


@pytest.mark.parametrize("recompute", ["layer", "stage", 1])
@pytest.mark.parametrize("memory_gb", [80.0, 4.6, 4.2, 3.9])
def test_the_cut_is_the_best_of_all_cuts_and_recomputes(memory_gb: float, recompute: Granularity) -> None:
    """One data-parallel rank, so that nothing outside the pipeline depends on the layout but the optimizer's shard."""
    p = problem(arch((2048, 8192, 4096, 2048), vocab=64_000), 2, memory_gb=memory_gb, batch=8)
    text = "tp1 pp2 dp1 mbs1 recompute=full"
    want, cuts = flat_optimum(p, text, recompute), best_cuts(stage_model(p, batch(text)), 0, recompute=recompute)
    if not cuts:
        assert np.isinf(want)
        return
    e = priced(p, text, cuts[0].layers, cuts[0].full)
    assert e.fits[0]
    assert float(e.total_s[0]) == pytest.approx(want, rel=2e-3)  # the optimizer's share of the slowest stage differs
    assert cuts[0].step_s >= relaxed_step_s(stage_model(p, batch(text)))[0] * (1 - 0.1)


def test_without_recompute_what_does_not_fit_evenly_may_fit_unevenly() -> None:
    """Stage 0 holds two micro-batches in flight, the last one: the memory moves the cut."""
    text = "tp1 pp2 dp1 mbs1"
    model = arch((4096,) * 8)
    for memory_gb in np.linspace(3.0, 6.0, 13):
        p = problem(model, 2, memory_gb=float(memory_gb), batch=16)
        cuts = best_cuts(stage_model(p, batch(text)), 0)
        fits = [s for s in splits(8, 2) if priced(p, text, s, ((0,), (0,))).fits[0]]
        assert bool(cuts) == bool(fits)
        if cuts:
            assert cuts[0].layers in fits
    assert not evaluate(problem(model, 2, memory_gb=4.0, batch=16), batch(text)).fits[0] or fits


def test_a_heavy_head_gives_layers_away() -> None:
    p = problem(HEAVY, 4, batch=64)
    cut = best_cuts(stage_model(p, batch("tp1 pp4 dp1 mbs1")), 0)[0]
    assert cut.layers[-1] <= 1 < cut.layers[0]
    assert sum(cut.layers) == 8


def test_more_memory_is_never_slower() -> None:
    text, steps = "tp1 pp2 dp1 mbs1 recompute=full", []
    for memory_gb in (3.4, 3.8, 4.2, 5.0, 8.0, 40.0):
        p = problem(arch((4096, 8192) * 3), 2, memory_gb=memory_gb, batch=16)
        cuts = best_cuts(stage_model(p, batch(text)), 0)
        steps.append(cuts[0].step_s if cuts else np.inf)
    assert steps == sorted(steps, reverse=True)
    assert np.isfinite(steps[-1])


def test_a_finer_choice_of_recompute_is_never_slower() -> None:
    for memory_gb in (3.6, 4.0, 4.4):
        p = problem(arch((2048, 8192) * 3), 2, memory_gb=memory_gb, batch=16)
        model = stage_model(p, batch("tp1 pp2 dp1 mbs1 recompute=full"))
        layer, stage = (best_cuts(model, 0, recompute=r) for r in ("layer", "stage"))
        same = [c for n in range(1, 5) for c in best_cuts(model, 0, recompute=n)]
        if stage:
            assert layer[0].step_s <= stage[0].step_s * (1 + 1e-12)
        if same:
            assert stage[0].step_s <= min(c.step_s for c in same) * (1 + 1e-12)


def test_recompute_of_the_first_layers_counts_the_kinds_they_are() -> None:
    p = problem(arch((2048, 8192, 2048, 8192)), 1, batch=4)
    model = stage_model(p, batch("tp1 pp1 dp1 mbs1 recompute=full"))
    zero, yes = np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool)
    cells = StageCells(zero[:, None], zero[:, None] + 4, zero, yes, yes)
    for n, want in enumerate([(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]):
        _, x = price_cells(model, 0, cells, n)
        assert tuple(x[0]) == want


@given(st.lists(st.floats(0.1, 3), min_size=1, max_size=7), st.integers(1, 5), st.floats(0, 3), st.floats(0, 3))
@settings(deadline=None, max_examples=150)
def test_levelled_chunks_have_the_smallest_possible_maximum(times: list[float], chunks: int, first: float, last: float) -> None:
    def slowest(split: tuple[int, ...]) -> float:
        ends = np.cumsum(split)
        sums = [sum(times[b:e]) for b, e in zip(ends - np.array(split), ends, strict=True)]
        sums[0] += first
        sums[-1] += last
        return max(sums)

    split = level_chunks(np.array(times), chunks, first, last)
    every = [s for s in product(range(len(times) + 1), repeat=chunks) if sum(s) == len(times)]
    assert sum(split) == len(times)
    assert min(split) >= 0
    assert slowest(split) == pytest.approx(min(map(slowest, every)))


def test_interleaved_cuts_fit_and_hold_every_layer() -> None:
    p = problem(arch((4096,) * 10, vocab=64_000), 2, memory_gb=6.0, batch=16)
    text = "tp1 pp2 dp1 vpp2 mbs1 recompute=full"
    model = stage_model(p, batch(text))
    cuts = best_interleaved(model, 0, recompute="stage")
    assert cuts
    for cut in cuts:
        assert (len(cut.layers), sum(cut.layers)) == (4, 10)
        assert priced(p, text, cut.layers, cut.full).fits[0]


def test_the_usual_spread_is_the_same_plan_by_both_roads() -> None:
    """A layout given explicitly is priced as the strategy that implies it; the simulation replaces only the bubble."""
    p = problem(MIXED, 4, batch=32)
    for text in ("tp1 pp2 dp2 zero1 mbs1", "tp1 pp2 dp2 zero1 vpp3 mbs1", "tp2 pp2 dp1 mbs1 recompute=full"):
        s = parse_strategy(text)
        model = stage_model(p, batch(text))
        layout = stage_layout(p.arch, s.pp, s.vpp)
        usual = usual_plans(p, [explain_strategy(p, s)], None)[0]
        full = tuple(tuple(int(n) if s.recompute == 2 else 0 for n in row) for row in _counts(model, s, layout.chunk_layers))
        from autoparallel_core.planners.two_level.cut import Cut

        explicit = plan_of(model, 0, Cut(layout.chunk_layers, full, 0.0), None)
        assert explicit.cost.total_s == pytest.approx(usual.cost.total_s)
        assert explicit.memory.reserved_bytes == pytest.approx(usual.memory.reserved_bytes)
        before = explain_strategy(p, s)
        changed = {c for c in before.cost.seconds if before.cost.seconds[c] != pytest.approx(usual.cost.seconds.get(c, 0.0))}
        assert changed <= {"bubble", "straggler"}
        assert [sum(x.layers) for x in explicit.stages] == list(layout.layers_per_stage)


def test_the_timeline_shows_the_stages_of_the_cut() -> None:
    """Its chunks take what the stage model says of them, recompute by stage included."""
    p = problem(MIXED, 4, batch=32)
    text, full = "tp1 pp2 dp2 zero1 mbs1 recompute=full", ((2, 1, 0), (0, 0, 1))
    n_classes = len(p.arch.layer_classes())
    cut = StageCut((4, 2), tuple((*row, *([0] * n_classes))[:n_classes] for row in full))
    times = chunk_times(p, parse_strategy(text), laid_out(p.arch, 2, cut.layers, cut.full))
    forward, backward = chunk_seconds(stage_model(p, batch(text)), 0, cut.layers, np.array(cut.full, dtype=float))
    assert times.layers == (4, 2)
    assert times.forward_s == pytest.approx(forward)
    assert np.add(times.input_s, times.weight_s) == pytest.approx(backward)


def _counts(model: StageModel, s: Strategy, chunks: tuple[int, ...]) -> np.ndarray:
    ends = np.cumsum(chunks)
    return (model.prefix[ends] - model.prefix[ends - np.array(chunks)]).reshape(s.vpp, s.pp, -1).sum(axis=0)
