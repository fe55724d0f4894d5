"""Memory of a plan by cause: everything that the device shows in use, and nothing else."""

from __future__ import annotations

import pytest
from attrs import evolve
from problem_builders import dense, training

from autoparallel_core.host import host
from autoparallel_core.search.explain import constants_read, explain_strategy
from autoparallel_core.spec.strategy import parse_strategy
from autoparallel_core.testing.toys import toy_problem

ARCH = dense(16, 2048, 16, 8, 8192, 32000)


@pytest.mark.parametrize("notation", ["tp2 pp2 dp2 mbs1", "tp1 pp1 dp8 zero3 mbs4", "tp1 pp4 dp2 zero1 mbs2 offload=optimizer"])
def test_causes_and_overhead_sum_to_the_peak(notation):
    problem = training(ARCH, 8)
    memory = explain_strategy(problem, parse_strategy(notation)).memory
    assert memory.deciding.peak_bytes == pytest.approx(memory.reserved_bytes)
    assert memory.deciding.overhead["context"] == problem.constant("memory_context_bytes")
    passing = memory.deciding.bytes["activations"] + memory.deciding.bytes.get("logits", 0.0)
    assert memory.deciding.overhead["allocator_slack"] == pytest.approx(problem.constant("memory_allocator_slack") * passing)
    assert memory.deciding.squeezed_bytes == pytest.approx(0.0, abs=1.0)
    assert all(s.peak_bytes == pytest.approx(s.total_bytes + sum(s.overhead.values())) for s in memory.stages)


def test_slack_that_has_no_room_is_told_apart():
    problem = training(ARCH, 8)
    free = explain_strategy(problem, parse_strategy("tp1 pp1 dp8 mbs1")).memory
    slack = free.deciding.overhead["allocator_slack"]
    memory_bytes = free.reserved_bytes - 0.25 * slack
    small = problem.with_cluster(evolve(problem.cluster, gpu=evolve(problem.cluster.gpu, memory_bytes=memory_bytes)))
    plan = explain_strategy(small, parse_strategy("tp1 pp1 dp8 mbs1"))
    assert plan.verdict == "tight"
    assert plan.memory.deciding.peak_bytes == pytest.approx(memory_bytes)
    assert plan.memory.deciding.squeezed_bytes == pytest.approx(0.25 * slack)
    assert plan.memory.deciding.overhead["allocator_slack"] == pytest.approx(0.75 * slack)


def test_constants_read_are_those_that_change_the_price():
    problem, strategy = training(ARCH, 8), parse_strategy("tp2 pp2 dp2 mbs1")
    read = constants_read(problem, strategy)
    base = explain_strategy(problem, strategy)
    for name, constant in problem.constants.items():
        changed = evolve(problem, constants={**problem.constants, name: evolve(constant, value=1.5 * constant.value + 1e-3)})
        if explain_strategy(changed, strategy) != base:
            assert name in read, name
    assert not any(name.startswith("serving_") for name in read)


def test_a_cache_that_is_too_small_is_part_of_the_peak():
    problem = toy_problem("vllm", "inference", host=host(), n_gpus=1)
    fits = explain_strategy(problem, parse_strategy("tp1 dp1"), host())
    assert fits.verdict == "fits"
    assert not fits.memory.deciding.overhead
    assert fits.memory.deciding.peak_bytes == pytest.approx(fits.memory.reserved_bytes)
    held = fits.serving.kv_tokens_per_instance
    longer = problem.with_workload(evolve(problem.inference, max_model_len=2 * held))
    plan = explain_strategy(longer, parse_strategy("tp1 dp1"), host())
    assert plan.verdict == "does not fit"
    assert plan.memory.deciding.overhead["missing_cache"] == pytest.approx(fits.serving.kv_bytes_per_gpu, rel=0.05)
    assert plan.memory.deciding.peak_bytes == pytest.approx(plan.memory.reserved_bytes)
