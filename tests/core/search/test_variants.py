"""Folding of near-identical strategies."""

from __future__ import annotations

from attrs import evolve

from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, StageMemory, TrainingFigures
from autoparallel_core.search.variants import fold
from autoparallel_core.spec.strategy import parse_strategy


def plan(text: str, rate: float, verdict: str = "fits") -> Plan:
    return Plan(
        strategy=parse_strategy(text),
        cost=CostBreakdown({"gemm": 1000.0 / rate}),
        memory=MemoryBreakdown((StageMemory(0, 8, {"weights": 1e9}),), 80e9, 2e9),
        verdict=verdict,
        training=TrainingFigures(1000.0 / rate, rate, 0.4, 8, (8,), 0.0),
    )


def test_same_degrees_and_speed_become_one_that_leaves_room():
    ranked = [
        plan("tp2 pp2 dp2 vpp2 mbs1", 1000.0, "tight"),
        plan("tp2 pp2 dp2 vpp4 mbs1", 999.0),
        plan("tp4 pp1 dp2 mbs1", 998.0),
        plan("tp2 pp2 dp2 mbs2", 996.0),
        plan("tp2 pp2 dp2 mbs4", 900.0),
    ]
    out = fold(ranked, 3)
    assert [p.notation for p in out] == ["tp2 pp2 dp2 vpp4 mbs1", "tp4 pp1 dp2 mbs1", "tp2 pp2 dp2 mbs4"]
    assert out[0].variants == (ranked[0].strategy, ranked[3].strategy)
    assert out[1].variants == out[2].variants == ()


def test_a_tight_one_stands_when_nothing_alike_leaves_room():
    ranked = [plan("tp2 pp2 dp2 mbs1", 10.0, "tight"), plan("tp2 pp2 dp2 mbs2", 10.0, "tight")]
    assert fold(ranked, 5) == [evolve(ranked[0], variants=(ranked[1].strategy,))]


def test_recomputation_that_frees_nothing_is_left_out():
    first, selective = plan("tp2 pp2 dp2 mbs1", 10.0), plan("tp2 pp2 dp2 mbs1 recompute=selective", 9.5)
    assert fold([first, selective], 5) == [first]
    stage = StageMemory(0, 8, {"weights": 0.9e9})
    leaner = evolve(selective, memory=MemoryBreakdown((stage,), 80e9, 1.9e9))
    assert fold([first, leaner], 5) == [first, leaner]
    assert len(fold([selective, first], 5)) == 2, "what recomputes less is no worse for it"


def test_no_more_than_asked():
    assert len(fold([plan(f"tp1 pp1 dp{n} mbs1", 10.0) for n in (1, 2, 4, 8)], 2)) == 2
