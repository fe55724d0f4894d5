"""Factories of serving rules on models made of facts."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from autoparallel_core.cluster import build_cluster
from autoparallel_core.search.serving_rules import (
    asked_precision_aligned,
    columns_at_one,
    groups_divisible,
    instances_fill_nodes,
    widths_divisible,
)
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu, toy_moe_arch


def problem(arch, n_gpus=32, **work):
    workload = InferenceWorkload(**{"isl": 128, "osl": 128} | work)
    return Problem(arch, build_cluster(toy_gpu(), n_gpus), workload, EngineSpec("toy", ("inference",), "1.0", "toy"), "1.0")


def broken(rule, p, *strategies):
    mask = rule.broken(p, StrategyBatch.of(strategies))
    assert mask.dtype == np.bool_
    return mask.tolist()


def test_mamba_groups():
    rule = groups_divisible("mamba_groups", "Mamba groups", "test", one_is_shared=True, rule_id="groups")
    eight = problem(evolve(toy_dense_arch(), rules=(("mamba_groups", 8),)))
    assert broken(rule, eight, *(Strategy(tp=t) for t in (1, 8, 16))) == [False, False, True]
    assert rule.sentence(eight, Strategy(tp=16)) == "8 Mamba groups cannot be divided by tp 16 (remainder 8); tp 8 would do"
    one = problem(evolve(toy_dense_arch(), rules=(("mamba_groups", 1),)))
    assert broken(rule, one, Strategy(tp=16)) == [False]
    assert broken(rule, problem(toy_dense_arch()), Strategy(tp=16)) == [False]


def test_widths():
    rule = widths_divisible("test")
    assert broken(rule, problem(toy_dense_arch()), Strategy(tp=8), Strategy(tp=3)) == [False, True]
    moe = problem(toy_moe_arch())
    assert broken(rule, moe, Strategy(tp=4, ep=4), Strategy(tp=1, attn_dp=3, etp=3)) == [False, True]
    assert "experts" in rule.sentence(moe, Strategy(tp=1, attn_dp=3, etp=3))


@pytest.mark.parametrize(
    ("asked", "tp", "bad"), [("nvfp4", 8, False), ("mxfp8", 8, False), ("nvfp4", 2048, True), ("bf16", 2048, False)]
)
def test_precision_asked_for(asked, tp, bad):
    # 16384 / 2048 = 8 is no multiple of a block of 16
    p = problem(toy_dense_arch(), precision=asked)
    assert broken(asked_precision_aligned("test"), p, Strategy(tp=tp)) == [bad]


def test_nodes():
    rule = instances_fill_nodes("test")
    p = problem(toy_dense_arch())
    rows = [Strategy(tp=4), Strategy(tp=8, pp=2), Strategy(tp=4, pp=3), Strategy(tp=3)]
    assert broken(rule, p, *rows) == [False, False, True, False]


def test_columns_without_words():
    rule = columns_at_one(("cp", "etp"), "no such flag", "test", rule_id="flags")
    p = problem(toy_dense_arch())
    assert broken(rule, p, Strategy(), Strategy(cp=2), Strategy(etp=2)) == [False, True, True]
    assert rule.sentence(p, Strategy(cp=2)) == "cp 2: no such flag"
