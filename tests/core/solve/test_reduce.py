"""Reduction keeps the optimum: brute force on random problems, and known small cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.solve.assignment import Assignment, solve_assignment
from autoparallel_core.solve.reduce import reduce_assignment


def brute(problem: Assignment) -> float:
    choices = itertools.product(*(range(len(c)) for c in problem.cost))
    return min((problem.price(c) for c in choices if problem.permits(c)), default=np.inf)


@st.composite
def problems(draw: st.DrawFn) -> Assignment:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(1, 6))
    sizes = rng.integers(1, 5, n)
    cost = [rng.integers(0, 20, k).astype(float) for k in sizes]
    edges = {}
    for u, v in itertools.combinations(range(n), 2):
        if rng.random() < 0.5:
            table = rng.integers(0, 20, (sizes[u], sizes[v])).astype(float)
            table[rng.random(table.shape) < 0.15] = np.inf
            edges[u, v] = table
    rows = []
    if draw(st.booleans()):
        members = {int(v): rng.integers(0, 9, sizes[v]).astype(float) for v in range(n) if rng.random() < 0.6}
        rows.append((members, float(rng.integers(0, 20))))
    return Assignment.of(cost, edges, rows)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_the_optimum_survives(problem: Assignment) -> None:
    best = brute(problem)
    reduced = reduce_assignment(problem)
    if reduced is None:
        assert best == np.inf
        return
    answer = solve_assignment(reduced.problem) if reduced.nodes else None
    if answer is not None and answer.choice is None:
        assert best == np.inf
        return
    choice = reduced.expand(answer.choice if answer is not None and answer.choice is not None else ())
    if not problem.permits(choice):
        assert best == np.inf
        return
    assert problem.price(choice) == pytest.approx(best)


def test_a_chain_needs_no_solver() -> None:
    rng = np.random.default_rng(1)
    cost = [rng.random(5) for _ in range(8)]
    edges = {(v, v + 1): rng.random((5, 5)) for v in range(7)}
    problem = Assignment.of(cost, edges)
    reduced = reduce_assignment(problem)
    assert reduced is not None
    assert reduced.nodes == ()
    assert problem.price(reduced.expand(())) == pytest.approx(brute(Assignment.of(cost[:8], edges)))


def test_a_dominated_option_goes_and_one_with_less_memory_stays() -> None:
    without = reduce_assignment(Assignment.of([[1.0, 2.0]], {}, []))
    assert without is not None
    assert without.nodes == ()
    # Two nodes must differ in memory: the dearer option is the only one that fits.
    problem = Assignment.of([[1.0, 2.0]], {}, [({0: [5.0, 1.0]}, 3.0)])
    kept = reduce_assignment(problem)
    assert kept is not None
    assert [k.tolist() for k in kept.kept] == [[0, 1]]


def test_ties_are_refused() -> None:
    with pytest.raises(ValueError, match="tied"):
        reduce_assignment(Assignment.of([[1.0], [1.0]], {}, [], {1: (0, [0])}))
