"""Message passing and the program behind it find the optimum, and their bound never passes it: brute force on random problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.solve.coupled import solve_coupled
from autoparallel_core.solve.couplings import Coupled, Coupling
from autoparallel_core.solve.messages import Passing


def brute(problem: Coupled) -> float:
    return min(problem.price(c) for c in itertools.product(*(range(len(c)) for c in problem.cost)))


@st.composite
def problems(draw: st.DrawFn) -> Coupled:
    """Cores smaller than the tables, groups with factors, several couplings between two nodes, forbidden options and pairs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(1, 6))
    sizes = rng.integers(1, 5, n)
    cost = [rng.integers(0, 20, k).astype(float) for k in sizes]
    for c in cost:
        c[rng.random(len(c)) < 0.1] = np.inf
    couplings = []
    for u, v in itertools.permutations(range(n), 2):
        if rng.random() < 0.35:
            g, h = rng.integers(1, 4, 2)
            core = rng.integers(0, 20, (g, h)).astype(float)
            core[rng.random(core.shape) < 0.1] = np.inf
            factor = rng.choice([1.0, 2.0, 0.5, np.inf], (2, 2), p=[0.4, 0.25, 0.25, 0.1])
            index = [rng.integers(0, m, k) for m, k in ((g, sizes[u]), (h, sizes[v]), (2, sizes[u]), (2, sizes[v]))]
            couplings.append((u, v, Coupling(core, index[0], index[1], factor, index[2], index[3])))
    return Coupled(tuple(cost), tuple(couplings))


@settings(max_examples=300, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_the_optimum_is_found_and_no_bound_passes_it(problem: Coupled, random: np.random.Generator) -> None:
    best = brute(problem)
    order = list(range(len(problem.cost)))
    random.shuffle(order)
    answer = solve_coupled(problem, order=order)
    if best == np.inf:
        assert answer.choice is None
        assert not answer.permitted
        return
    assert answer.choice is not None
    assert problem.price(answer.choice) == answer.cost == pytest.approx(best)
    assert answer.bound <= best + 1e-9
    again = solve_coupled(problem, order=order, messages=answer.messages)
    assert again.cost == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_bounds_rise_and_options_that_are_out_are_in_no_better_choice(problem: Coupled) -> None:
    best = brute(problem)
    if best == np.inf:
        return
    passing = Passing.of(problem, tuple(range(len(problem.cost))))
    last = -np.inf
    for _ in range(8):
        passing.step()
        assert last - 1e-9 <= passing.base <= best + 1e-9
        last = passing.base
    above = passing.above()
    for v, u in ((v, int(k)) for v, a in enumerate(above) for k in range(len(a))):
        choices = itertools.product(*(range(len(c)) if i != v else (u,) for i, c in enumerate(problem.cost)))
        assert min(problem.price(c) for c in choices) >= passing.base + above[v][u] - 1e-9


@settings(max_examples=60, deadline=None)
@given(problems())
def test_couplings_answer_as_their_tables(problem: Coupled) -> None:
    for _, _, c in problem.couplings:
        table = c.table()
        assert np.array_equal(c.turned().table(), table.T)
        assert np.array_equal(c[0, :], table[0])
        assert np.array_equal(c[:, 0], table[:, 0])
        assert c[0, 0] == table[0, 0]
        plain = Coupling(c.core, c.rows, c.columns, np.full((1, 1), 2.0))
        assert np.array_equal(plain.plus(plain.scaled(2.0)).table(), 3.0 * plain.table())
        groups = plain.grouped(np.array([[1.0, 3.0]])).table()
        assert np.array_equal(groups, np.block([[plain.table(), 3.0 * plain.table()]]))


def test_a_long_chain_needs_one_pass() -> None:
    rng = np.random.default_rng(0)
    core = rng.random((40, 40))
    chain = [(i, i + 1, Coupling.of(core).scaled(1.0 + i)) for i in range(50)]
    problem = Coupled(tuple(rng.random(40) for _ in range(51)), tuple(chain))
    answer = solve_coupled(problem)
    cost = problem.cost[0]
    for i in range(50):
        cost = (cost[:, None] + (1.0 + i) * core).min(axis=0) + problem.cost[i + 1]
    assert answer.cost == pytest.approx(float(cost.min()))
    assert answer.passes <= 2
