"""Activations in host memory: the price by hand, the least number of layers against every number, the answer."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from two_level_problems import FREE, arch, problem

from autoparallel_core.cost.activation_offload import host_link_bytes_per_s
from autoparallel_core.errors import SpecError
from autoparallel_core.planners.two_level.host_activations import least_layers, with_layers_away
from autoparallel_core.planners.two_level.stage_model import stage_model
from autoparallel_core.planners.two_level.uneven import automatic_search, uneven_search
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.explain_cut import explain_cut
from autoparallel_core.spec.problem import Ability, Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy

AWAY = evolve(FREE, name="away", abilities={"host_activations": Ability("1.0", "a number of layers")})
MODEL = arch((4096, 2048, 4096, 8192, 4096, 4096))
TEXT = "tp1 pp1 dp4 zero1 mbs2"


def linked(p: Problem, bytes_per_s: float) -> Problem:
    return p.with_cluster(evolve(p.cluster, gpu=evolve(p.cluster.gpu, host_link_bytes_per_s=bytes_per_s)))


def test_copies_that_take_longer_than_the_stage_are_waited_for() -> None:
    b = StrategyBatch.of([parse_strategy(TEXT)])
    p = linked(problem(MODEL, 4, batch=32), 1e9)
    assert host_link_bytes_per_s(p) == pytest.approx(0.8e9)
    plain, away = evaluate(p, b), evaluate(with_layers_away(p, 3), b)
    gone = float(plain.memory["activations"][0] - away.memory["activations"][0])
    model = stage_model(p, b)
    counts = model.prefix[-1]
    assert gone == pytest.approx(float(counts @ model.saved[0]) / 2)
    forward = float(counts @ model.forward[0] + model.first_forward[0] + model.last_forward[0])
    whole = float(counts @ model.time[0] + model.first_s[0] + model.last_s[0])
    waits = 4 * (max(gone / 0.8e9 - forward, 0) + max(gone / 0.8e9 - (whole - forward), 0))  # 4 micro-batches
    assert waits > 0
    assert float(away.seconds["activation_offload"][0]) == pytest.approx(waits)
    fast = evaluate(with_layers_away(linked(p, 1e15), 3), b)
    assert float(fast.seconds["activation_offload"][0]) == 0
    assert float(fast.total_s[0]) == pytest.approx(float(plain.total_s[0]))


@pytest.mark.parametrize("memory_gb", [3.0, 3.4, 4.0, 4.6, 20.0])
def test_the_least_number_of_layers_is_the_first_that_fits(memory_gb: float) -> None:
    texts = [TEXT, "tp2 pp1 dp2 zero1 mbs2", "tp1 pp1 dp4 zero3 mbs4", "tp4 pp1 dp1 mbs8"]
    b = StrategyBatch.of([parse_strategy(t) for t in texts])
    p = problem(MODEL, 4, memory_gb=memory_gb, batch=32)
    need = least_layers(stage_model(p, b))
    for i in range(len(b)):
        fits = [bool(evaluate(with_layers_away(p, n) if n else p, b.take([i])).fits[0]) for n in range(7)]
        assert need[i] == (fits.index(True) if True in fits else 6)


def test_a_fast_link_beats_recompute_and_the_plan_can_be_repeated() -> None:
    p = linked(problem(MODEL, 4, memory_gb=4.4, batch=32, engine=AWAY, activation_cpu_offload=True), 1e12)
    space = Space(pp=(1,), tp=(1,), cp=(1,), zero=(1,), offload=(0,))
    found = uneven_search(p, space, (), top=4)
    best = found.plans[0]
    assert best.stages[0].offloaded > 0
    assert found.baseline is not None
    assert best.cost.total_s < found.baseline.cost.total_s
    assert any(r.startswith("activations of ") for r in best.reasons)
    again = explain_cut(p, best.strategy, best.cut)
    assert again.cost.total_s == pytest.approx(best.cost.total_s)
    assert again.memory.reserved_bytes == pytest.approx(best.memory.reserved_bytes)
    chosen = automatic_search(p, space, (), top=1)
    assert chosen.planner == "two_level"
    assert chosen.chosen.startswith("activations in host memory gain ")
    slow = uneven_search(linked(p, 1e6), space, (), top=4)
    assert not any(x.stages and x.stages[0].offloaded for x in slow.plans[:1])
    assert np.isfinite(slow.plans[0].cost.total_s)


def test_nobody_is_sent_to_the_host_unasked_and_engines_that_cannot_refuse() -> None:
    p = linked(problem(MODEL, 4, memory_gb=4.4, batch=32, engine=AWAY), 1e12)
    assert not any(s.offloaded for x in uneven_search(p, Space(pp=(1,)), (), top=9).plans for s in x.stages)
    with pytest.raises(SpecError, match=r"free 1\.0 keeps all activations on the GPU"):
        uneven_search(problem(MODEL, 4, activation_cpu_offload=True, engine=FREE), Space(), ())
