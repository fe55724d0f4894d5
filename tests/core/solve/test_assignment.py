"""The assignment problem against all choices, and how it ends when time is short."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.solve.assignment import Assignment, solve_assignment


@st.composite
def graphs(draw: st.DrawFn) -> Assignment:
    """Up to five nodes with cycles, memory rows, forbidden entries and a tied node; seconds and bytes in their usual sizes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    whole, n = draw(st.booleans()), len(sizes)

    def numbers(*shape: int) -> np.ndarray:
        return rng.integers(0, 6, size=shape).astype(float) if whole else rng.random(shape) * 1e-3

    cost = [numbers(k) for k in sizes]
    edges = {(u, v): numbers(sizes[u], sizes[v]) for u in range(n) for v in range(n) if u != v and rng.random() < 0.35}
    for x in (*cost, *edges.values()):
        x[rng.random(x.shape) < 0.1] = np.inf
    rows = [
        ({v: rng.random(sizes[v]) * 1e9 for v in range(n) if rng.random() < 0.7}, float(rng.random() * n * 0.6e9))
        for _ in range(draw(st.integers(0, 2)))
    ]
    follow = {}
    if n > 2 and draw(st.booleans()):
        follow[n - 1] = (0, rng.integers(-1, sizes[-1], size=sizes[0]))
    return Assignment.of(cost, edges, rows, follow)


def best_of_all(problem: Assignment) -> float:
    choices = product(*(range(len(c)) for c in problem.cost))
    return min((problem.price(c) for c in choices if problem.permits(c)), default=np.inf)


@given(graphs())
@settings(deadline=None, max_examples=150)
def test_the_optimum_is_the_best_of_all_choices(problem: Assignment) -> None:
    want, got = best_of_all(problem), solve_assignment(problem)
    if np.isinf(want):
        assert got.status == "infeasible"
        assert got.choice is None
        return
    assert got.status == "optimal"
    assert got.choice is not None
    assert problem.permits(got.choice)
    assert got.cost == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert got.gap == 0.0


def test_a_table_that_is_a_sum_needs_no_variables_of_its_own() -> None:
    from autoparallel_core.solve.assignment import _compile

    a, b = np.array([1.0, 4.0, 2.0]), np.array([0.0, 3.0])
    summed = Assignment.of([[0, 0, 0], [1, 0]], {(0, 1): a[:, None] + b[None, :]})
    mixed = Assignment.of([[0, 0, 0], [1, 0]], {(0, 1): [[0, 1], [1, 0], [1, 1]]})
    small, large = _compile(summed), _compile(mixed)
    assert small is not None
    assert large is not None
    assert (len(small[0].cost), len(large[0].cost)) == (5, 11)
    assert solve_assignment(summed).cost == 2.0
    assert solve_assignment(mixed).cost == 0.0


def hard(nodes: int, options: int) -> Assignment:
    """A chain whose budget binds, so that its relaxation is fractional."""
    rng = np.random.default_rng(3)
    cost = [rng.random(options) + 1 for _ in range(nodes)]
    memory = {v: 3 - c + rng.random(options) / 2 for v, c in enumerate(cost)}
    edges = {(v, v + 1): rng.random((options, options)) * 0.3 for v in range(nodes - 1)}
    return Assignment.of(cost, edges, [(memory, 0.9 * sum(float(np.median(m)) for m in memory.values()))])


def test_an_incumbent_is_returned_when_there_is_no_time() -> None:
    problem = hard(60, 16)
    least = [int(m.argmin()) for m in problem.rows[0].memory.values()]
    got = solve_assignment(problem, time_limit_s=0.0, incumbent=least)
    assert got.status == "feasible"
    assert got.cost <= problem.price(least)
    assert got.bound <= got.cost
    assert got.gap == pytest.approx((got.cost - got.bound) / got.cost) or got.bound == -np.inf


def test_without_time_and_incumbent_nothing_is_claimed() -> None:
    got = solve_assignment(hard(60, 16), time_limit_s=0.0)
    assert got.status in {"no solution in time", "feasible"}
    assert got.gap > 0


def test_a_gap_is_honoured_and_reported() -> None:
    problem = hard(24, 10)
    exact, loose = solve_assignment(problem), solve_assignment(problem, gap=0.05)
    assert exact.status == "optimal"
    assert exact.cost <= loose.cost <= exact.cost / 0.95
    assert loose.bound <= exact.cost * (1 + 1e-9)


def test_an_incumbent_that_breaks_the_problem_is_refused() -> None:
    problem = Assignment.of([[0.0, 1.0]], rows=[({0: [2.0, 1.0]}, 1.0)])
    with pytest.raises(ValueError, match="memory row"):
        solve_assignment(problem, incumbent=[0])
    assert solve_assignment(problem).choice == (1,)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"cost": [[float("nan")]]}, "node 0"),
        ({"cost": [[1], [1]], "edges": {(0, 1): [[1, 2]]}}, "edge 0–1"),
        ({"cost": [[1]], "edges": {(0, 0): [[1]]}}, "edge 0–0"),
        ({"cost": [[1]], "rows": [({0: [1, 2]}, 1)]}, "memory row 0"),
        ({"cost": [[1], [1]], "follow": {1: (0, [3])}}, "node 1 cannot follow node 0"),
        ({"cost": [[1], [1], [1]], "follow": {1: (0, [0]), 2: (1, [0])}}, "node 2 cannot follow node 1"),
    ],
)
def test_ill_shaped_problems_are_refused(arguments: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Assignment.of(**arguments)


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    solve_assignment(hard(10, 4))
    assert capfd.readouterr() == ("", "")
