from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from problem_builders import dense, training

from autoparallel_core.errors import SpecError, UnknownPlugin
from autoparallel_core.problem import make_problem
from autoparallel_core.search.api import search
from autoparallel_core.search.min_nodes import find_min_nodes
from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, SearchResult, StageMemory
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.strategy import Strategy
from autoparallel_core.spec.workload import TrainingWorkload

ARCH = dense(4, 1024, 16, 4, 4096, 32000)


class FakeHost:
    """One planner, ``nodes``: something fits on the node counts it is given, of which ``tight`` leave no room."""

    def __init__(self, fitting: set[int], unfillable: set[int] = frozenset(), tight: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.fitting, self.unfillable, self.tight = fitting, unfillable, tight
        self.asked: list[tuple[int, int, bool]] = []
        self.without_offload: list[int] = []

    def planners(self) -> dict[str, str]:
        return {"nodes": "for tests", "silent": "gives no result"}

    def plan(self, planner: str, problem: Problem, options: Mapping[str, Any]) -> SearchResult | None:
        if planner == "silent":
            return None
        assert options["host"] is self
        nodes = problem.cluster.n_gpus // 8
        self.asked.append((nodes, options["top"], options.get("first_fit", False)))
        if nodes in self.unfillable:
            raise SpecError(f"nothing fills {nodes} nodes")
        if problem.training.optimizer_cpu_offload is False:
            self.without_offload.append(nodes)
        memory = MemoryBreakdown((StageMemory(0, 4, {}),), 1.0, 0.5)
        plan = Plan(Strategy(), CostBreakdown({"gemm": 1.0}), memory, "tight" if nodes in self.tight else "fits")
        return SearchResult(problem, (plan,) if nodes in self.fitting else (), fitting=int(nodes in self.fitting))


def problem_for(n_gpus: int) -> Problem:
    return training(ARCH, n_gpus, batch=4096)


def test_unknown_planner_gives_near_names() -> None:
    with pytest.raises(UnknownPlugin, match="unknown planner 'node'; did you mean nodes"):
        search(problem_for(8), planner="node", host=FakeHost({1}))  # type: ignore[arg-type]


def test_a_planner_without_a_result_is_an_error() -> None:
    with pytest.raises(UnknownPlugin, match=r"planner 'silent' .* gave no result"):
        search(problem_for(8), planner="silent", host=FakeHost({1}))  # type: ignore[arg-type]


def test_top_must_be_positive() -> None:
    with pytest.raises(SpecError, match="at least 1, not 0"):
        search(problem_for(8), top=0, host=FakeHost({1}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fitting", "found", "tried"),
    [
        (range(1, 99), 1, (1,)),
        (range(2, 99), 2, (1, 2)),
        (range(6, 99), 6, (1, 2, 4, 8, 5, 6)),
        (range(8, 99), 8, (1, 2, 4, 8, 5, 6, 7)),
        ({7, 8}, 7, (1, 2, 4, 8, 5, 6, 7)),
        ({11}, 11, (1, 2, 4, 8, 11, 9, 10)),
    ],
)
def test_fewest_nodes(fitting: Any, found: int, tried: tuple[int, ...]) -> None:
    host = FakeHost(set(fitting))
    most = 11 if found == 11 else 64
    answer = find_min_nodes(problem_for, problem_for(8).cluster, planner="nodes", top=7, most_nodes=most, host=host)  # type: ignore[arg-type]
    assert (answer.nodes, answer.n_gpus, answer.tried) == (found, 8 * found, tried)
    assert answer.result.problem.cluster.n_gpus == 8 * found
    assert host.asked == [*((n, 1, True) for n in tried), (found, 7, False)], "only the answer is searched in full"


def test_nothing_fits_up_to_the_limit() -> None:
    answer = find_min_nodes(problem_for, problem_for(8).cluster, planner="nodes", most_nodes=12, host=FakeHost(set()))  # type: ignore[arg-type]
    assert (answer.nodes, answer.n_gpus, answer.tried, answer.most_nodes) == (None, None, (1, 2, 4, 8, 12), 12)
    assert answer.result.problem.cluster.n_gpus == 96
    assert answer.result.fitting == 0


def test_node_counts_that_cannot_be_filled_are_skipped_with_the_reason() -> None:
    host = FakeHost({4}, unfillable={1, 3})
    answer = find_min_nodes(problem_for, problem_for(8).cluster, planner="nodes", most_nodes=8, host=host)  # type: ignore[arg-type]
    assert (answer.nodes, answer.tried) == (4, (2, 4))
    assert answer.skipped == ((1, "nothing fills 1 nodes"), (3, "nothing fills 3 nodes"))
    with pytest.raises(SpecError, match="no number of nodes up to 1 can be filled: nothing fills 1 nodes"):
        find_min_nodes(problem_for, problem_for(8).cluster, planner="nodes", most_nodes=1, host=host)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="at least 1, not 0"):
        find_min_nodes(problem_for, problem_for(8).cluster, planner="nodes", most_nodes=0, host=host)  # type: ignore[arg-type]


def test_room_is_looked_for_from_the_answer_on() -> None:
    host = FakeHost(set(range(3, 99)), tight={3, 4, 5, 6})
    answer = find_min_nodes(problem_for, problem_for(8).cluster, planner="nodes", most_nodes=20, room=True, host=host)  # type: ignore[arg-type]
    assert (answer.nodes, answer.roomy_nodes, answer.roomy_most) == (3, 7, 20)
    assert host.without_offload == [3, 4, 8, 5, 6, 7]
    host = FakeHost(set(range(1, 99)), tight=set(range(1, 99)))
    answer = find_min_nodes(problem_for, problem_for(8).cluster, planner="nodes", room=True, host=host)  # type: ignore[arg-type]
    assert (answer.nodes, answer.roomy_nodes, answer.roomy_most) == (1, None, 16)


def test_room_with_an_optimizer_that_must_be_in_host_memory() -> None:
    def offloaded(n_gpus: int) -> Problem:
        return training(ARCH, n_gpus, batch=4096, optimizer_cpu_offload=True)

    host = FakeHost({1, 2})
    answer = find_min_nodes(offloaded, problem_for(8).cluster, planner="nodes", room=True, host=host)  # type: ignore[arg-type]
    assert answer.roomy_nodes == 1
    assert host.without_offload == []


def test_a_reason_that_more_nodes_do_not_change_is_said_alone() -> None:
    def impossible(n_gpus: int) -> Problem:
        return make_problem(ARCH, problem_for(n_gpus).cluster, TrainingWorkload(4096, 64, "fp8x"), engine="e", host=Engines())  # type: ignore[arg-type]

    class Engines:
        def engine(self, name: str, mode: str) -> EngineSpec:
            return EngineSpec(name, (mode,), "1.0", "for tests")  # type: ignore[arg-type]

    for most in (1, 64):
        with pytest.raises(SpecError, match=r"^unknown precision 'fp8x'"):
            find_min_nodes(impossible, problem_for(8).cluster, most_nodes=most, host=FakeHost(set()))  # type: ignore[arg-type]
