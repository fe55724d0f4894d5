from __future__ import annotations

from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from problem_builders import cluster, deepseek_v3, dense, llama_70b, training

from autoparallel_core.search import axes
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.workload import Software


@given(st.integers(1, 3000))
def test_divisors(n: int) -> None:
    assert axes.divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)


def test_tp_stays_in_the_fast_fabric() -> None:
    problem = training(llama_70b(), 96)
    assert axes.training_tp(problem, Space()) == (1, 2, 3, 4, 6, 8)
    rack = problem.with_cluster(cluster(144, scale_up_domain=72, gpus_per_node=4))
    assert max(axes.training_tp(rack, Space())) == 72
    pcie = problem.with_cluster(cluster(16, scale_up_domain=1))
    assert max(axes.training_tp(pcie, Space())) == 8


@pytest.mark.parametrize(
    ("seq", "expected"), [(512, (1,)), (4096, (1, 2, 4)), (6000, (1, 2, 4)), (131072, (1, 2, 4, 8, 16, 32, 64))]
)
def test_cp_keeps_a_thousand_tokens(seq: int, expected: tuple[int, ...]) -> None:
    assert axes.training_cp(training(llama_70b(), 64, seq=seq), Space()) == expected


def test_experts_divide() -> None:
    assert axes.expert_parallel(training(deepseek_v3(), 64), Space()) == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert axes.expert_parallel(training(llama_70b(), 64), Space()) == (1,)


def test_virtual_stages_of_real_recipes() -> None:
    assert 4 in axes.virtual_pipeline(training(deepseek_v3(), 64), Space(), 8)
    assert {1, 2, 4, 5, 10, 20} <= set(axes.virtual_pipeline(training(llama_70b(), 64), Space(), 4))
    assert axes.virtual_pipeline(training(llama_70b(), 64), Space(), 1) == (1,)
    ends = evolve(training(llama_70b(), 64), software=Software(embedding_as_layer=True))
    assert axes.virtual_pipeline(ends, Space(), 41) == (1, 2)
    assert axes.virtual_pipeline(training(dense(4, 64, 4, 4, 64, 64), 64), Space(vpp=(1, 2, 9)), 2) == (1, 2)


def test_partial_recompute_is_a_coarse_grid() -> None:
    problem = training(llama_70b(), 64)
    assert axes.recompute_options(problem, Space(), 20) == ((0, 0), (1, 0), (2, 0), (2, 5), (2, 10), (2, 15))
    assert axes.recompute_options(problem, Space(), 1) == ((0, 0), (1, 0), (2, 0))
    assert axes.recompute_options(problem, Space(recompute=("full",), partial_recompute=False), 20) == ((2, 0),)


def test_sharding_on_one_rank_is_stage_zero_only() -> None:
    assert axes.sharding_options(Space(zero=(3,)), 1) == ((0, 1),)
    assert axes.sharding_options(Space(), 4) == ((0, 1), (1, 4), (2, 4), (3, 4))
    assert axes.sharding_options(Space(zero=(3,), hsdp=True), 8) == ((3, 2), (3, 4), (3, 8))


@pytest.mark.parametrize("most", [1, 7, 64, 65, 1000])
def test_numbers_of_instances_are_dense_and_end_at_the_most(most: int) -> None:
    counts = axes.instance_counts(most)
    assert counts[0] == 1
    assert counts[-1] == most
    assert set(range(1, min(most, axes.EVERY_INSTANCE_COUNT) + 1)) <= set(counts)
    assert all(b - a <= max(1, 0.03 * a + 1) for a, b in pairwise(counts))
