from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.host import host
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.neighbours import neighbours
from autoparallel_core.search.rules import rules_for, violations
from autoparallel_core.spec.strategy import COLUMNS, StrategyBatch, parse_strategy
from autoparallel_core.testing.toys import toy_dense_arch, toy_moe_arch, toy_problem

DENSE = ["tp4 pp2 dp4 mbs1", "tp1 pp1 dp32 zero3 mbs2", "tp8 pp4 dp1 mbs1 recompute=full", "tp2 pp4 dp2 cp2 vpp2 zero1 mbs1"]
MOE = ["tp2 pp2 dp8 ep8 zero1 mbs1", "tp1 pp2 dp16 ep16 mbs1", "tp4 pp1 dp8 ep8 etp4 zero1 mbs1"]


@pytest.mark.parametrize(("notation", "moe"), [*((s, False) for s in DENSE), *((s, True) for s in MOE)])
def test_changes_are_legal_fill_the_cluster_and_are_priced_as_evaluate_does(notation, moe):
    problem = toy_problem("megatron", "training", host=host(), arch=toy_moe_arch() if moe else toy_dense_arch())
    start = parse_strategy(notation)
    found = neighbours(problem, start, host())
    rules = rules_for(problem, host())
    assert len(found) >= 5
    assert len({n.strategy for n in found}) == len(found)
    base = evaluate(problem, StrategyBatch.of([start]), host())
    for n in found:
        assert n.strategy != start
        assert n.strategy.world == 32
        assert not violations(problem, n.strategy, rules)
        alone = evaluate(problem, StrategyBatch.of([n.strategy]), host())
        assert n.throughput_ratio == pytest.approx(float(alone.tokens_per_s_per_gpu[0] / base.tokens_per_s_per_gpu[0]))
        assert sum(n.seconds_change.values()) == pytest.approx(float(alone.total_s[0] - base.total_s[0]), abs=1e-9)
        assert n.memory_change_bytes == pytest.approx(float(alone.reserved_bytes[0] - base.reserved_bytes[0]))
        assert n.fits == bool(alone.fits[0])
        assert n.fits == (n.shortfall_bytes == 0 and n.host_shortfall_bytes == 0)
    ratios = [n.throughput_ratio for n in found]
    assert ratios == sorted(ratios, reverse=True)


def test_one_axis_changes_and_one_makes_up_for_it():
    problem = toy_problem("megatron", "training", host=host())
    start = parse_strategy("tp4 pp2 dp4 zero1 mbs1")
    changes = {n.change: n.strategy for n in neighbours(problem, start, host())}
    assert changes["tp 4→2, dp 4→8"] == parse_strategy("tp2 pp2 dp8 zero1 mbs1")
    assert changes["tp 4→8, dp 4→2"] == parse_strategy("tp8 pp2 dp2 zero1 mbs1")
    assert changes["pp 2→1, dp 4→8"] == parse_strategy("tp4 pp1 dp8 zero1 mbs1")
    assert changes["mbs 1→2"] == parse_strategy("tp4 pp2 dp4 zero1 mbs2")
    assert changes["zero 1→0"] == parse_strategy("tp4 pp2 dp4 mbs1")
    assert changes["recompute none→full"] == parse_strategy("tp4 pp2 dp4 zero1 mbs1 recompute=full")
    for s in changes.values():
        moved = {c for c in COLUMNS if getattr(s, c) != getattr(start, c)} - {"shard", "recompute_layers"}
        assert 1 <= len(moved - {"sp"} or moved) <= 2


def test_without_data_parallelism_the_pipeline_makes_up():
    problem = toy_problem("megatron", "training", host=host())
    changes = {n.change for n in neighbours(problem, parse_strategy("tp8 pp4 dp1 mbs1"), host())}
    assert "tp 8→4, dp 1→2" in changes
    problem = toy_problem("megatron", "training", host=host(), n_gpus=8)
    changes = {n.change for n in neighbours(problem, parse_strategy("tp4 pp2 dp1 mbs1"), host())}
    assert "tp 4→8, pp 2→1" in changes


def test_the_workloads_limits_hold():
    problem = toy_problem("megatron", "training", host=host())
    problem = problem.with_workload(
        evolve(problem.training, recompute_allowed=False, max_tokens_per_micro_batch=4096, optimizer_cpu_offload=False)
    )
    found = neighbours(problem, parse_strategy("tp4 pp2 dp4 mbs1"), host())
    assert not any("recompute" in n.change or "offload" in n.change or "mbs" in n.change for n in found)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]))
def test_serving_changes_fill_the_cluster(tp, pp):
    problem = toy_problem("vllm", "inference", host=host(), n_gpus=16)
    start = parse_strategy(f"tp{tp} pp{pp} dp{16 // tp // pp} mbs1")
    for n in neighbours(problem, start, host()):
        assert n.strategy.world == 16
        moved = {c for c in COLUMNS if getattr(n.strategy, c) != getattr(start, c)} - {"sp", "shard"}
        assert moved <= {"tp", "pp", "dp", "attn_dp", "ep"}


def test_one_rank_has_nobody_to_shard_with():
    problem = toy_problem("megatron", "training", host=host())
    alone = [n.change for n in neighbours(problem, parse_strategy("tp8 pp4 dp1 mbs1"), host())]
    assert alone
    assert not any(change.startswith("zero") for change in alone)


def test_another_stage_that_becomes_the_slowest_is_said_and_its_work_is_one_cause():
    """A vocabulary so large that the last stage is the slowest once stages hold few layers."""
    arch = toy_dense_arch()
    problem = toy_problem("megatron", "training", host=host(), arch=arch)
    start = parse_strategy("tp2 pp2 dp8 mbs1 recompute=full")
    found = neighbours(problem, start, host())
    base = evaluate(problem, StrategyBatch.of([start]), host())
    for n in found:
        now = evaluate(problem, StrategyBatch.of([n.strategy]), host())
        moved = [bool(now.seconds[c][0] > 0) != bool(base.seconds[c][0] > 0) for c in ("embedding", "loss")]
        assert bool(n.slowest) == any(moved), n.change
        assert ("slowest_stage" in n.seconds_change) == bool(n.slowest)
        assert not n.slowest or not {"gemm", "recompute", "loss", "attention"} & set(n.seconds_change)
        assert sum(n.seconds_change.values()) == pytest.approx(float(now.total_s[0] - base.total_s[0]), abs=1e-9)
    assert any(n.slowest for n in found), "the case at hand"
    assert any(not n.slowest for n in found)
