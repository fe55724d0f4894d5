"""Stages of different degrees: every cut with every way to run each stage, and against stages that share their degrees."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from attrs import evolve
from test_two_level_kinds import FAST, SLOW, mixed, on
from two_level_problems import PLAIN, arch, problem

from autoparallel_core.errors import SpecError
from autoparallel_core.planners.two_level.cells import StageCells, price_cells, stage_bytes
from autoparallel_core.planners.two_level.degrees import Way, best_degrees, cut_degrees
from autoparallel_core.planners.two_level.degrees_answer import degrees_search
from autoparallel_core.planners.two_level.kinds import as_if_all, kinds_search
from autoparallel_core.planners.two_level.stage_model import stage_model
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy

SPACE = Space(vpp=(1,), zero=(1,), offload=(0,), cp=(1,))


def parts_of(p: Problem) -> list[Problem]:
    return [p.with_cluster(as_if_all(p.cluster, k)) for k in p.cluster.kinds]


def ways_of(parts: list[Problem], texts: list[tuple[int, str]]) -> list[Way]:
    out = []
    for kind, text in texts:
        s = parse_strategy(text)
        out.append(Way(kind, stage_model(parts[kind], StrategyBatch.of([s])), 0, s.tp * s.cp * s.dp))
    return out


def cuts(n_layers: int, stages: int) -> Iterator[list[tuple[int, int]]]:
    """Intervals of the layers and the head behind them, none empty but the head alone."""
    for inner in combinations(range(1, n_layers + 1), stages - 1):
        yield list(pairwise((0, *inner, n_layers + 1)))


def stage_s(way: Way, begin: int, end: int, k: int, n: int) -> float:
    """Seconds of nodes begin … end − 1 with k stages to the end."""
    cells = StageCells(
        np.array([[begin]]), np.array([[min(end, n)]]), np.array([int(way.model.batch.pp[0]) - k]),
        np.array([begin == 0]), np.array([end == n + 1]),
    )  # fmt: skip
    return float(price_cells(way.model, 0, cells, "layer")[0][0] + way.model.p2p_s[0])


@pytest.mark.parametrize("memory_gb", [(40.0, 24.0), (3.2, 6.0), (2.6, 2.6)])
def test_the_cut_is_the_best_over_cuts_ways_and_recompute(memory_gb: tuple[float, float]) -> None:
    """Eight GPUs of each kind, stages of eight or four, five layers: all cuts, all orders, all ways."""
    kinds = [evolve(k, gpu=evolve(k.gpu, memory_bytes=gb * 1e9)) for k, gb in zip((FAST, SLOW), memory_gb, strict=True)]
    p = on(mixed(*kinds), layers=5)
    texts = [
        (0, "tp4 pp2 dp2 zero1 mbs1 recompute=full"), (0, "tp2 pp4 dp2 zero1 mbs1 recompute=full"),
        (1, "tp4 pp2 dp2 zero1 mbs1 recompute=full"), (1, "tp2 pp4 dp2 zero1 mbs1 recompute=full"),
    ]  # fmt: skip
    ways = ways_of(parts_of(p), texts)
    m, best = int(ways[0].model.micro_batches[0]), np.inf
    for stages in range(2, 5):
        for chosen in product(ways, repeat=stages):
            if any(sum(w.gpus for w in chosen if w.kind == kind) != 8 for kind in (0, 1)):
                continue
            for cut in cuts(5, stages):
                times = [stage_s(w, a, b, stages - s, 5) for s, (w, (a, b)) in enumerate(zip(chosen, cut, strict=True))]
                best = min(best, sum(times) + (m - 1) * max(times))
    found = cut_degrees(ways, (8, 8), "layer")
    if np.isinf(best):
        assert not found
        return
    assert min(sum(x.time_s) + (m - 1) * max(x.time_s) for x in found) == pytest.approx(best)
    for plan in found:
        assert sum(plan.layers) == 5
        assert all(b <= w.model.budget[w.row] for b, w in zip(plan.held_bytes, plan.ways, strict=True))
        assert plan.pipeline_s >= m * max(plan.time_s)


def test_the_bytes_of_a_stage_are_the_evaluators() -> None:
    p = problem(arch((4096,) * 6, vocab=64_000), 4, batch=16)
    b = StrategyBatch.of([parse_strategy("tp1 pp2 dp2 zero1 mbs1 recompute=full")])
    model = stage_model(p, b)
    cells = StageCells(np.array([[0], [3]]), np.array([[3], [6]]), np.arange(2), np.array([True, False]), np.array([False, True]))
    e = evaluate(p, b)
    assert stage_bytes(model, 0, cells, np.array([[3], [3]])).max() == pytest.approx(float(e.allocated_bytes[0]))


def test_never_slower_than_stages_that_share_their_degrees() -> None:
    """Sixteen fast and eight slow GPUs: equal stages must divide both; here they need not be equal."""
    fast = evolve(FAST, n_gpus=16)
    p = on(mixed(fast, SLOW), layers=12)
    plans, considered = best_degrees(parts_of(p), [16, 8], SPACE, None, "layer")
    same = kinds_search(p, SPACE, host=None, top=1)
    assert considered > 0
    assert plans[0].step_s <= same.plans[0].cost.total_s * (1 + 1e-2)
    answer = degrees_search(p, SPACE, host=None, top=2, usual=lambda: same)
    assert answer.plans[0].cost.total_s <= same.plans[0].cost.total_s
    assert answer.baseline == same.plans[0]
    assert any("what an engine with degrees by stage would do" in a for a in answer.assumptions)
    used = {kind: sum(s.gpus for s in answer.plans[0].stages if s.gpu == kind) for kind in ("fast", "slow")}
    assert used == {"fast": 16, "slow": 8}


def test_one_kind_of_gpu_may_have_stages_of_different_size_too() -> None:
    p = problem(arch((4096,) * 6, vocab=200_000), 8, batch=32)
    plans, _ = best_degrees([p], [8], Space(vpp=(1,), zero=(0, 1), offload=(0,)), None, "layer")
    assert plans
    for plan in plans:
        assert sum(w.gpus for w in plan.ways) == 8
        assert len({int(w.model.batch.mbs[w.row] * w.model.batch.dp[w.row]) for w in plan.ways}) == 1


def test_engines_that_cut_evenly_are_refused() -> None:
    with pytest.raises(SpecError, match=r"plain cuts stages evenly.*differ in size"):
        degrees_search(on(mixed(FAST, SLOW), engine=PLAIN), SPACE, host=None, top=1, usual=lambda: None)  # type: ignore[arg-type,return-value]
