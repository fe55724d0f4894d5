from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from problem_builders import dense, training

from autoparallel_core.errors import SpecError, UnknownPlugin
from autoparallel_core.search.api import search
from autoparallel_core.search.min_nodes import find_min_nodes
from autoparallel_core.search.result import CostBreakdown, MemoryBreakdown, Plan, SearchResult, StageMemory
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy

ARCH = dense(4, 1024, 16, 4, 4096, 32000)


class FakeHost:
    """One planner, ``nodes``: something fits on the node counts it is given, and 3 nodes cannot be filled."""

    def __init__(self, fitting: set[int], unfillable: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.fitting, self.unfillable = fitting, unfillable
        self.asked: list[tuple[int, int, bool]] = []

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
        plan = Plan(Strategy(), CostBreakdown({"gemm": 1.0}), MemoryBreakdown((StageMemory(0, 4, {}),), 1.0, 0.5), "fits")
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
