"""Clusters of several kinds: against every cut and every order of kinds, and against what one kind gives."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from problem_builders import cluster
from test_two_level import splits
from two_level_problems import FREE, PLAIN, arch, problem

from autoparallel_core.errors import SpecError
from autoparallel_core.planners.two_level import plan as plan_hook
from autoparallel_core.planners.two_level.cut import Cut
from autoparallel_core.planners.two_level.kind_cuts import KindCut, best_kind_cuts
from autoparallel_core.planners.two_level.kind_plans import kind_plan
from autoparallel_core.planners.two_level.kinds import as_if_all, kinds_search
from autoparallel_core.planners.two_level.layouts import plan_of
from autoparallel_core.planners.two_level.stage_model import StageModel, stage_model
from autoparallel_core.planners.two_level.uneven import uneven_search
from autoparallel_core.search.api import search
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.result import SearchResult
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy

FAST = cluster(8, name="fast", memory_bytes=40e9)
SLOW = cluster(8, name="slow", memory_bytes=24e9, peak_flops={"bf16": 300e12, "fp16": 300e12}, hbm_bytes_per_s=1.5e12)
SPACE = Space(vpp=(1,), zero=(0, 1), offload=(0,), cp=(1,))


def mixed(*parts: Cluster) -> Cluster:
    outer = evolve(parts[0].tiers[-1], ranks=sum(p.n_gpus for p in parts), bytes_per_s=25e9, name="scale-out")
    return evolve(parts[0], n_gpus=outer.ranks, tiers=(*parts[0].tiers, outer), kinds=parts)


def on(parts: Cluster, layers: int = 6, batch: int = 64, **changes: object) -> Problem:
    return problem(arch((4096,) * layers, vocab=16_000), 1, batch=batch, **changes).with_cluster(parts)  # type: ignore[arg-type]


def models_of(p: Problem, text: str) -> list[StageModel]:
    batch = StrategyBatch.of([parse_strategy(text)])
    return [stage_model(p.with_cluster(as_if_all(p.cluster, k)), batch) for k in p.cluster.kinds]


@pytest.mark.parametrize("memory_gb", [(40.0, 24.0), (4.0, 3.6), (3.5, 8.0), (3.4, 3.4)])
def test_the_cut_is_the_best_over_cuts_kinds_and_recompute(memory_gb: tuple[float, float]) -> None:
    """Two stages on each kind; every order of kinds, every cut, every number of layers recomputed."""
    parts = [evolve(k, gpu=evolve(k.gpu, memory_bytes=gb * 1e9)) for k, gb in zip((FAST, SLOW), memory_gb, strict=True)]
    p = on(mixed(*parts), layers=5)
    models = models_of(p, "tp4 pp4 dp1 mbs1 recompute=full")
    best = np.inf
    for kinds in set(permutations((0, 0, 1, 1))):
        for layers in splits(5, 4):
            options = []
            for s, (k, n) in enumerate(zip(kinds, layers, strict=True)):
                options.append([(x, _stage(models[k], s, sum(layers[:s]), n, x)) for x in range(n + 1)])
            for chosen in product(*options):
                times = [t for _, t in chosen]
                if np.isfinite(times).all():
                    step = max(float(m.step_s(0, sum(times), max(times))) for m in models)
                    best = min(best, step)
    cuts = best_kind_cuts(models, 0, (2, 2), recompute="layer")
    assert bool(cuts) == bool(np.isfinite(best))
    if cuts:
        assert cuts[0].step_s == pytest.approx(best)
        assert sorted(cuts[0].kinds) == [0, 0, 1, 1]
        assert sum(cuts[0].layers) == 5


def _stage(m: StageModel, position: int, begin: int, layers: int, recomputed: int) -> float:
    """Seconds of one stage, infinite where it does not fit; written out for one class of layers."""
    first, last = position == 0, position == 3
    flight = float(m.flight(0, np.array([position]))[0])
    held = layers * m.static[0, 0] + m.constant[0] + first * m.first_static[0] + last * (m.last_static[0] + m.logits[0])
    held += flight * (layers * m.saved[0, 0] - recomputed * m.dropped[0, 0] + m.passing[0] + last * m.last_saved[0])
    held += m.live[0, 0] if recomputed else 0.0
    if held > m.budget[0]:
        return np.inf
    return float(layers * m.time[0, 0] + recomputed * m.again[0, 0] + first * m.first_s[0] + last * m.last_s[0])


def test_the_slow_kind_gets_fewer_layers() -> None:
    p = on(mixed(FAST, SLOW), layers=24)
    result = kinds_search(p, SPACE, host=None, top=3)
    best = result.plans[0]
    by_kind = {name: [s.n_layers for s in best.stages if s.gpu == name] for name in ("fast", "slow")}
    assert sum(by_kind["fast"]) > 1.5 * sum(by_kind["slow"]) > 0
    assert sum(s.gpus for s in best.stages if s.gpu == "slow") == 8
    assert sum(s.n_layers for s in best.stages) == 24
    assert result.baseline is not None
    assert best.throughput > 1.2 * result.baseline.throughput
    assert best.reasons[0].startswith("+")
    assert "same GPUs" in best.reasons[0]
    for s in best.stages:
        assert s.memory_bytes < s.capacity_bytes == {"fast": 40e9, "slow": 24e9}[s.gpu]


def test_two_parts_of_the_same_kind_are_one_cluster() -> None:
    """Priced as two parts, a plan takes as long as priced as one, event for event and byte for byte."""
    outer = evolve(cluster(16).tiers[-1], bytes_per_s=50e9)
    halves = mixed(evolve(FAST, tiers=(*FAST.tiers, evolve(outer, ranks=8, name="scale-out"))), FAST)
    p = on(halves, layers=12)
    whole = p.with_cluster(as_if_all(halves, halves.kinds[0]))
    text = "tp2 pp4 dp2 zero1 mbs1 recompute=full"
    models = models_of(p, text)
    layers, full = (3, 4, 3, 2), ((3,), (2,), (1,), (0,))
    split = kind_plan(p, [models[0], models[0]], 0, KindCut(layers, (0, 1, 0, 1), full, 0.0), None)
    one = plan_of(stage_model(whole, StrategyBatch.of([parse_strategy(text)])), 0, Cut(layers, full, 0.0), None)
    assert split.cost.total_s == pytest.approx(one.cost.total_s)
    assert [s.memory_bytes for s in split.stages] == pytest.approx([s.memory_bytes for s in one.stages])
    assert [s.time_s for s in split.stages] == pytest.approx([s.time_s for s in one.stages])


@pytest.mark.parametrize(("batch", "worth"), [(2048, True), (32, False)])
def test_the_answer_says_what_each_kind_would_do_alone(batch: int, *, worth: bool) -> None:
    """A large batch fills the pipeline over both kinds; with a small one the fast kind is better off alone."""
    p = on(mixed(FAST, SLOW), layers=24, batch=batch)

    def alone(part: Problem) -> SearchResult:
        return uneven_search(part, SPACE, (), top=1)

    best = kinds_search(p, SPACE, host=None, top=1, alone=alone).plans[0]
    own = alone(p.with_cluster(FAST)).plans[0]
    assert (best.throughput * 16 > own.throughput * 8) is worth
    said = next(r for r in best.reasons if r.startswith("the 8 fast alone would reach"))
    assert f"all together {best.throughput * 16:,.0f}" in said
    assert ("leave the others out" in said) is not worth
    assert any(r.startswith("the 8 slow alone") for r in best.reasons)


def test_one_price_for_all_kinds_is_refused() -> None:
    p = on(mixed(FAST, SLOW))
    with pytest.raises(SpecError, match=r"several kinds \(fast, slow\).*two_level"):
        evaluate(p, StrategyBatch.of([parse_strategy("tp1 pp2 dp8 mbs1")]))


def test_an_engine_that_cuts_evenly_is_refused() -> None:
    with pytest.raises(SpecError, match=r"plain cuts stages evenly.*wait for the slowest"):
        kinds_search(on(mixed(FAST, SLOW), engine=PLAIN), SPACE, host=None)


def test_nothing_fits_on_small_kinds() -> None:
    tiny = [evolve(k, gpu=evolve(k.gpu, memory_bytes=2.3e9)) for k in (FAST, SLOW)]
    result = kinds_search(on(mixed(*tiny)), SPACE, host=None)
    assert result.plans == ()
    assert result.fitting == 0


def test_the_planner_is_chosen_by_itself() -> None:
    class Host:
        def planners(self) -> dict[str, str]:
            return {"auto": "", "two_level": "", "grid": ""}

        def plan(self, planner: str, problem: Problem, options: dict[str, Any]) -> SearchResult:
            return SearchResult(problem, (), planner=planner)

    class Disabled(Host):
        def planners(self) -> dict[str, str]:
            return {"grid": ""}

    for p in (on(mixed(FAST, SLOW)), on(FAST)):
        assert search(p, host=Host()).planner == "auto"  # type: ignore[arg-type]
        assert search(p, host=Disabled()).planner == "grid"  # type: ignore[arg-type]
    assert plan_hook("grid", on(FAST), {}) is None
    assert FREE.abilities
