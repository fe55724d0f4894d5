"""Legal strategies near an illegal one: the nearest by hand, and by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from problem_builders import ENGINE, inference, training

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.host import Host, LocalPlugin
from autoparallel_core.search.common_rules import heads_divisible, world_product
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.nearest import distance, nearest_fitting, nearest_legal
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
from autoparallel_core.testing.toys import toy_dense_arch, toy_moe_arch


class Rules:
    @hookimpl
    def rules(self, problem):
        return [world_product("test"), heads_divisible("test")]


@pytest.fixture
def host() -> Host:
    return Host(entry_points=[LocalPlugin("test", "engines", Rules())])


def test_the_distance_counts_doublings() -> None:
    start = parse_strategy("tp4 pp2 dp4 mbs1")
    texts = ["tp4 pp2 dp4 mbs1", "tp8 pp2 dp2 mbs1", "tp2 pp2 dp8 mbs1", "tp4 pp2 dp4 mbs4", "tp4 pp2 dp4 mbs1 recompute=full"]
    batch = StrategyBatch.of([parse_strategy(t) for t in texts])
    assert distance(batch, start).tolist() == [0.0, 1.125, 1.125, 2.0, 1.0]


def test_exchanging_experts_by_width_for_experts_by_number_is_one_step() -> None:
    start = parse_strategy("tp8 pp1 dp1 etp8")
    batch = StrategyBatch.of([parse_strategy("tp8 pp1 dp1 ep8"), parse_strategy("tp4 pp1 dp2 etp4")])
    assert distance(batch, start).tolist() == [1.0, 2.125]


def test_the_nearest_is_found_as_by_brute_force(host: Host) -> None:
    problem = training(toy_dense_arch(), 32, batch=64, engine=evolve(ENGINE, name="test"))
    start = parse_strategy("tp3 pp2 dp4 mbs1 zero1")
    found = nearest_legal(problem, start, host, count=4)
    everything = StrategyBatch.concat(list(enumerate_space(problem, Space(), [r for _, rs in host.rules(problem) for r in rs])))
    far = np.sort(distance(everything, start, 32))
    assert [distance(StrategyBatch.of([s]), start, 32)[0] for s in found] == pytest.approx(far[:4])
    assert all(s.world == 32 and s.zero == 1 and s.mbs == 1 for s in found)
    assert found[0].tp in {2, 4}


def test_the_rest_of_the_plan_is_kept_where_that_leaves_any(host: Host) -> None:
    problem = training(toy_dense_arch(), 8, batch=8, engine=evolve(ENGINE, name="test"))
    kept = nearest_legal(problem, parse_strategy("tp3 pp1 dp2 mbs2 recompute=full"), host)
    assert all(s.mbs == 2 and s.recompute == 2 for s in kept)
    odd = nearest_legal(problem, parse_strategy("tp3 pp1 dp2 mbs3"), host)
    assert odd
    assert all(8 % (s.mbs * s.dp) == 0 for s in odd)


def test_serving(host: Host) -> None:
    problem = inference(toy_moe_arch(), 8, engine=evolve(ENGINE, name="test"))
    found = nearest_legal(problem, parse_strategy("tp3 pp1 dp2 etp3"), host)
    assert found
    assert all(s.tp in {2, 4} for s in found)


def test_idle_gpus_count() -> None:
    batch = StrategyBatch.of([parse_strategy("tp2 pp1 dp1"), parse_strategy("tp1 pp1 dp3 sp=off")])
    three, two = np.log2(3), np.log2(1.5)
    start = parse_strategy("tp3 pp1 dp1 sp=off")
    assert distance(batch, start).tolist() == pytest.approx([2 * two + 1, three + three / 8])


def test_what_fits_comes_first(host: Host) -> None:
    """On GPUs as large as the half of the legal layouts needs, those come first, each part still nearest first."""
    problem = training(toy_dense_arch(), 32, batch=64, engine=evolve(ENGINE, name="test"))
    start = parse_strategy("tp3 pp2 dp4 mbs1 zero1")
    near = nearest_legal(problem, start, host, count=64)
    middle = float(np.median(evaluate(problem, StrategyBatch.of(near), host).reserved_bytes))
    small = evolve(problem.cluster, gpu=evolve(problem.cluster.gpu, memory_bytes=middle))
    problem = evolve(problem, cluster=small)
    fits = evaluate(problem, StrategyBatch.of(near), host).fits
    assert 0 < fits.sum() < len(near)
    expected = [s for s, ok in zip(near, fits, strict=True) if ok] + [s for s, ok in zip(near, fits, strict=True) if not ok]
    assert nearest_fitting(problem, start, host, count=64) == expected
    assert nearest_fitting(problem, start, host) == expected[:3]
