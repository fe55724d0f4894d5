"""Chains against the product of all choices, and against the integer program at size."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.solve.assignment import Assignment, solve_assignment
from autoparallel_core.solve.chain import Chain, cheapest_chain, nondominated, pareto_chain

FORBIDDEN = 0.15


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Up to six nodes of up to four options; small integers (many ties) or reals; some options and pairs forbidden."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    whole = draw(st.booleans())

    def numbers(*shape: int) -> np.ndarray:
        return rng.integers(0, 6, size=shape).astype(float) if whole else rng.random(shape) * 5

    cost, memory = [numbers(k) for k in sizes], [numbers(k) for k in sizes]
    transition = [numbers(a, b) for a, b in pairwise(sizes)]
    for x in (*cost, *transition):
        x[rng.random(x.shape) < FORBIDDEN] = np.inf
    return Chain.of(cost, memory, transition)


def every_choice(chain: Chain) -> list[tuple[float, float]]:
    choices = product(*(range(len(c)) for c in chain.cost))
    return [(m, t) for m, t in map(chain.price, choices) if np.isfinite(t)]


@given(chains(), st.sampled_from([0.0, 2.0, 5.0, 9.0, np.inf]))
@settings(deadline=None, max_examples=150)
def test_the_cheapest_choice_is_the_best_of_all_choices(chain: Chain, budget: float) -> None:
    want = min((t for m, t in every_choice(chain) if m <= budget), default=None)
    got = cheapest_chain(chain, budget)
    assert (got is None) == (want is None)
    if got is not None:
        assert got.cost == pytest.approx(want, rel=1e-9, abs=1e-9)
        assert got.memory <= budget * (1 + 1e-9)
        assert chain.price(got.choice) == (got.memory, got.cost)


@given(chains())
@settings(deadline=None, max_examples=150)
def test_the_front_answers_every_budget(chain: Chain) -> None:
    front = pareto_chain(chain)
    assert (np.diff(front.memory) > 0).all()
    assert (np.diff(front.cost) < 0).all()
    for m, t in every_choice(chain):
        i = front.within(m + 1e-9)
        assert i is not None
        assert front.cost[i] <= t + 1e-9
    for i in range(len(front)):
        assert chain.price(front.choice(i)) == pytest.approx((front.memory[i], front.cost[i]))


@given(chains(), st.floats(0, 20), st.floats(0, 10))
@settings(deadline=None, max_examples=100)
def test_more_memory_is_never_worse(chain: Chain, budget: float, more: float) -> None:
    less, plenty = cheapest_chain(chain, budget), cheapest_chain(chain, budget + more)
    if less is not None:
        assert plenty is not None
        assert plenty.cost <= less.cost * (1 + 1e-9)


def long_chain(nodes: int, options: int, seed: int) -> tuple[Chain, float]:
    """Faster options need more memory; the budget binds."""
    rng = np.random.default_rng(seed)
    cost = [rng.random(options) + 1 for _ in range(nodes)]
    memory = [3 - c + rng.random(options) / 2 for c in cost]
    chain = Chain.of(cost, memory, [rng.random((options, options)) * 0.3 for _ in range(nodes - 1)])
    return chain, float(sum(np.median(m) for m in memory)) * 0.9


def as_assignment(chain: Chain, budget: float | None = None) -> Assignment:
    edges = {(v, v + 1): t for v, t in enumerate(chain.transition)}
    rows = [] if budget is None else [(dict(enumerate(chain.memory)), budget)]
    return Assignment.of(chain.cost, edges, rows)


@pytest.mark.parametrize(("nodes", "options"), [(32, 16), (126, 24)])
def test_long_chains_without_a_budget_agree_with_the_linear_program(nodes: int, options: int) -> None:
    chain, _ = long_chain(nodes, options, seed=nodes)
    best = cheapest_chain(chain, np.inf)
    relaxed = solve_assignment(as_assignment(chain))
    assert best is not None
    assert relaxed.method == "lp"  # the relaxation of a chain is integral
    assert relaxed.cost == pytest.approx(best.cost, rel=1e-12)
    assert relaxed.choice == best.choice


def test_long_chains_with_a_budget_agree_with_the_integer_program() -> None:
    chain, budget = long_chain(32, 12, seed=1)
    best, front = cheapest_chain(chain, budget), pareto_chain(chain, budget=budget)
    proven = solve_assignment(as_assignment(chain, budget), time_limit_s=120)
    assert best is not None
    assert proven.status == "optimal"
    assert proven.method == "mip"
    assert best.cost == pytest.approx(proven.cost, rel=1e-9)
    assert front.cost[-1] == pytest.approx(best.cost, rel=1e-9)


def test_identical_nodes_are_solved_through_their_counts() -> None:
    """Without transitions the order cannot matter: the chain agrees with the knapsack of counts."""
    from autoparallel_core.solve.counts import count_front

    cost, memory = np.array([1.0, 1.3, 2.0]), np.array([5.0, 3.0, 1.0])
    front = pareto_chain(Chain.of([cost] * 20, [memory] * 20))
    counted = count_front([20], cost[None, :], memory[None, :])
    np.testing.assert_allclose(front.memory, counted.memory)
    np.testing.assert_allclose(front.cost, counted.cost)


def test_equal_sums_in_another_order_are_one_point() -> None:
    rng = np.random.default_rng(0)
    cost, memory = rng.random(6) + 1, rng.random(6)
    front = pareto_chain(Chain.of([cost] * 12, [memory] * 12))
    assert len(front) < 12**2


def test_nondominated_keeps_one_of_equals() -> None:
    memory = np.array([2.0, 1.0, 1.0, 3.0, 2.0])
    cost = np.array([3.0, 4.0, 4.0, 3.0, 2.0])
    assert sorted(zip(memory[nondominated(memory, cost)], cost[nondominated(memory, cost)], strict=True)) == [(1, 4), (2, 2)]


@pytest.mark.parametrize(
    ("cost", "memory", "transition", "says"),
    [
        ([], None, None, "0 nodes"),
        ([[1.0], [1.0]], [[1.0]], None, "not 1 and 1"),
        ([[1.0, 2.0]], [[1.0]], None, "node 0"),
        ([[1.0], [1.0]], None, [[[1.0, 2.0]]], r"transition 0 has shape \(1, 2\)"),
        ([[float("nan")]], None, None, "not a number"),
        ([[1.0]], [[np.inf]], None, "finite memory"),
    ],
)
def test_ill_shaped_chains_are_refused(cost: list, memory: list | None, transition: list | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Chain.of(cost, memory, transition)
