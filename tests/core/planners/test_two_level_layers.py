"""A strategy per layer: against every choice, and against the evaluator where all layers agree."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from two_level_problems import arch, problem

from autoparallel_core.planners.exhaustive import grid_search
from autoparallel_core.planners.two_level.layer_options import LayerOptions, layer_options
from autoparallel_core.planners.two_level.layers import best_layers, layer_search
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch, parse_strategy

SHARDED = "tp1 pp1 dp4 zero3 mbs1"
SPACE = Space(vpp=(1,), cp=(1,), offload=(0,))


def options_of(p: Problem, *texts: str) -> LayerOptions:
    return layer_options(p, StrategyBatch.of([parse_strategy(t) for t in texts]), None)


@pytest.mark.parametrize(
    "text",
    [
        "tp1 pp1 dp4 mbs2", "tp1 pp1 dp4 zero1 mbs2", "tp1 pp1 dp4 zero2 mbs2", "tp1 pp1 dp4 zero3 mbs2", "tp2 pp1 dp2 mbs4",
        "tp4 pp1 dp1 mbs8", "tp1 pp1 dp4 zero3 mbs2 recompute=full", "tp1 pp1 dp4 zero1 mbs2 recompute=selective",
    ],
)  # fmt: skip
def test_layers_of_one_strategy_add_up_to_the_evaluator(text: str) -> None:
    """Up to what a step pays once (the fixed part of the optimizer, the start of collectives) and what hides behind what."""
    p = problem(arch((4096,) * 8), 4, batch=32)
    o = options_of(p, text)
    nodes = o.of_nodes(o.first_s, o.layer_s, o.last_s)
    e = evaluate(p, o.batch)
    whole = float(e.total_s[0] - e.seconds["straggler"][0]) - p.constant("optimizer_fixed_s")
    assert sum(float(x[0]) for x in nodes) == pytest.approx(whole, rel=0.03)
    held = sum(float(x[0]) for x in o.of_nodes(o.first_bytes, o.layer_bytes, o.last_bytes))
    assert held + float(o.model.constant[0] + o.live[0]) == pytest.approx(float(e.allocated_bytes[0]), rel=1e-9)


def test_another_layout_costs_an_exchange_and_the_same_costs_nothing() -> None:
    p = problem(arch((4096,) * 4), 4, batch=32)
    o = options_of(p, "tp1 pp1 dp4 mbs2", "tp1 pp1 dp4 zero3 mbs2", "tp2 pp1 dp2 mbs4", "tp4 pp1 dp1 mbs8")
    assert o.change_s[0, 1] == o.change_s[1, 0] == 0.0
    assert o.change_s[0, 2] > 0
    np.testing.assert_allclose(o.change_s, o.change_s.T)
    local = 2 * 2048 * 1024 * 2.0  # one rank's tokens × hidden × 2 bytes, the same in every layout
    bus = p.cluster.tiers[0].bytes_per_s
    assert o.change_s[0, 3] > 4 * 2 * 0.75 * local / bus  # four micro-batches, there and back, three quarters leave


@pytest.mark.parametrize("memory_gb", [20.0, 4.4, 4.1, 3.8, 3.5])
def test_the_choice_is_the_best_of_all_choices(memory_gb: float) -> None:
    p = problem(arch((2048, 8192, 4096)), 4, memory_gb=memory_gb, batch=16)
    o = options_of(
        p, *("tp1 pp1 dp4 zero1 mbs1", "tp1 pp1 dp4 zero3 mbs1", "tp2 pp1 dp2 zero1 mbs2"), f"{SHARDED} recompute=full"
    )
    cost, memory = o.of_nodes(o.first_s, o.layer_s, o.last_s), o.of_nodes(o.first_bytes, o.layer_bytes, o.last_bytes)
    best = np.inf
    for choice in product(range(4), repeat=5):
        held = sum(float(m[k]) for m, k in zip(memory, choice, strict=True))
        held += max(float(o.live[k]) for k in choice) + max(float(o.model.constant[k]) for k in choice)
        if held <= float(o.model.budget[0]):
            time = sum(float(c[k]) for c, k in zip(cost, choice, strict=True))
            best = min(best, time + sum(float(o.change_s[a, b]) for a, b in pairwise(choice)))
    found = best_layers(o)
    assert (found is None) == np.isinf(best)
    if found is not None:
        assert found.step_s == pytest.approx(best)
        assert best_layers(o, found.step_s) is None
        assert found.step_s <= found.uniform_s * (1 + 1e-12)


def test_mixing_layers_fills_the_memory_that_one_strategy_leaves() -> None:
    better = 0
    for memory_gb in (3.6, 3.8, 4.0, 4.2):
        p = problem(arch((4096,) * 10), 4, memory_gb=memory_gb, batch=32)
        result, grid = layer_search(p, SPACE, ()), grid_search(p, SPACE, (), top=1)
        if not grid.plans:
            continue
        best = result.plans[0]
        assert best.cost.total_s <= grid.plans[0].cost.total_s * (1 + 1e-9)
        if best.stages:
            better += 1
            assert sum(s.n_layers for s in best.stages) == 10
            assert len({s.strategy for s in best.stages}) > 1
            assert best.stages[0].memory_bytes <= best.stages[0].capacity_bytes
            assert best.reasons[0].startswith("+")
            assert best.cost.total_s == pytest.approx(sum(best.cost.seconds.values()))
    assert better


def test_the_answer_says_that_the_engine_runs_one_strategy() -> None:
    result = layer_search(problem(arch((4096,) * 4), 2, batch=8), SPACE, ())
    assert any("free runs one strategy for all layers" in a for a in result.assumptions)
    assert isinstance(result.plans[0].strategy, Strategy)
