"""Counts of modes against the enumeration of every member's mode."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.solve.counts import count_front, fewest_upgrades


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 3, 8, 20]))
@settings(deadline=None, max_examples=150)
def test_the_front_holds_the_best_for_every_budget(seed: int, classes: int, modes: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    n = rng.integers(0, 4, size=classes)
    cost = rng.integers(0, 5, size=(classes, modes)).astype(float)
    memory = rng.integers(0, 5, size=(classes, modes)).astype(float)
    cost[rng.random(cost.shape) < 0.1] = np.inf
    want = np.inf
    for taken in product(*(combinations_with_replacement(range(modes), int(k)) for k in n)):
        if sum(memory[c, r] for c, rs in enumerate(taken) for r in rs) <= budget:
            want = min(want, sum(cost[c, r] for c, rs in enumerate(taken) for r in rs))
    front = count_front(n, cost, memory)
    i = front.within(budget)
    if i is None:
        assert np.isinf(want)
        return
    assert front.cost[i] == want
    assert (front.counts[i].sum(axis=1) == n).all()
    used = front.counts[i] > 0
    assert front.memory[i] == (front.counts[i] * memory).sum()
    assert np.isfinite(cost[used]).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
@settings(deadline=None, max_examples=150)
def test_upgrades_are_as_cheap_as_any_that_save_enough(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    n = rng.integers(0, 4, size=(6, classes))
    saved = rng.random(n.shape) * (rng.random(n.shape) < 0.8)
    extra, deficit = rng.random(n.shape), rng.random(6) * 4 - 1
    cost, x = fewest_upgrades(n, saved, extra, deficit)
    for s in range(6):
        options = product(*(range(k + 1) for k in n[s]))
        want = min((float(np.dot(o, extra[s])) for o in options if np.dot(o, saved[s]) >= deficit[s]), default=np.inf)
        assert cost[s] == pytest.approx(want) or (np.isinf(cost[s]) and np.isinf(want))
        if np.isfinite(want):
            assert (x[s] <= n[s]).all()
            assert np.dot(x[s], saved[s]) >= deficit[s] - 1e-9
            assert np.dot(x[s], extra[s]) == pytest.approx(cost[s])


def test_both_agree_on_two_modes() -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        n = rng.integers(1, 30, size=2)
        keep, drop = rng.random(2) + 1, rng.random(2)
        extra = rng.random(2)
        front = count_front(n, np.stack([np.zeros(2), extra], axis=1), np.stack([keep, drop], axis=1))
        budget = float(rng.uniform((n * drop).sum(), (n * keep).sum()))
        cost, _ = fewest_upgrades(n[None], (keep - drop)[None], extra[None], np.array([(n * keep).sum() - budget]))
        i = front.within(budget)
        assert i is not None
        assert cost[0] == pytest.approx(front.cost[i])


def test_a_class_without_a_permitted_mode_has_no_answer() -> None:
    assert len(count_front([1], [[np.inf, np.inf]], [[1.0, 1.0]]).memory) == 0
    assert len(count_front([0], [[np.inf, np.inf]], [[1.0, 1.0]]).memory) == 1
    with pytest.raises(ValueError, match="do not fit"):
        count_front([1, 2], [[1.0]], [[1.0]])
