"""Makespans against closed forms, against the longest path of all events, and the period against the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.solve.schedule import _simulate, makespan, orders


@pytest.mark.parametrize(("p", "v", "m"), [(1, 1, 3), (4, 1, 4), (4, 1, 40), (4, 2, 16), (8, 4, 64), (3, 5, 33)])
def test_even_stages_idle_for_the_published_bubble(p: int, v: int, m: int) -> None:
    """(p − 1)/v of a micro-batch's forward and backward, arXiv 2104.04473, section 2.2."""
    chunks = np.ones(p * v)
    assert makespan(chunks, 2 * chunks, p, m) == pytest.approx(3 * v * m + 3 * (p - 1))


def test_all_forwards_first_idles_as_long() -> None:
    assert makespan(np.ones(4), 2 * np.ones(4), 4, 12, schedule="gpipe") == pytest.approx(3 * (12 + 3))


@pytest.mark.parametrize("slow", range(4))
def test_one_slow_stage_sets_the_pace(slow: int) -> None:
    """The slowest stage repeats; on the last one every other stage fills and drains besides, nearer the first some hide."""
    forward = np.ones(4)
    forward[slow] = 3.0
    assert makespan(forward, 2 * forward, 4, 50) == pytest.approx(50 * 9 + 3 * slow)


def test_one_slow_chunk_stalls_ranks_of_equal_work() -> None:
    """Each rank has four units of work per micro-batch, but in unequal chunks: slower than equal ones."""
    level, uneven = np.array([2.0] * 8), np.array([1.0] * 4 + [3.0] * 4)
    assert makespan(uneven, uneven, 4, 64) > 1.15 * makespan(level, level, 4, 64)


def longest_path(f: np.ndarray, b: np.ndarray, p: int, m: int, schedule: str, send: float) -> float:
    """Fixed point of the start times over all precedences, by repeated relaxation."""
    chunks = len(f)
    tasks = orders(p, chunks, m, schedule)  # type: ignore[arg-type]
    end: dict[tuple[bool, int, int], float] = {t: 0.0 for rank in tasks for t in rank}
    changed = True
    while changed:
        changed = False
        for rank in tasks:
            before = 0.0
            for t in rank:
                back, c, i = t
                ready = before
                if not back and c:
                    ready = max(ready, end[False, c - 1, i] + (send if p > 1 else 0))
                if back:
                    ready = max(ready, end[False, c, i] if c == chunks - 1 else end[True, c + 1, i] + (send if p > 1 else 0))
                now = ready + float(b[c] if back else f[c])
                changed |= now > end[t] + 1e-12
                end[t] = before = max(now, end[t])
    return max(end.values())


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.sampled_from(["1f1b", "gpipe"]))
@settings(deadline=None, max_examples=80)
def test_equals_the_longest_path(seed: int, p: int, v: int, m: int, schedule: str) -> None:
    m *= p if v > 1 else 1
    rng = np.random.default_rng(seed)
    f = rng.random(p * v) + 0.1
    b = f + rng.random(p * v)
    send = float(rng.random() * 0.2)
    got = makespan(f, b, p, m, schedule=schedule, send=send)  # type: ignore[arg-type]
    assert got == pytest.approx(longest_path(f, b, p, m, schedule, send))


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 3), st.integers(40, 120))
@settings(deadline=None, max_examples=40)
def test_the_period_stands_for_the_whole(seed: int, p: int, v: int, m: int) -> None:
    m = m // p * p if v > 1 else m
    rng = np.random.default_rng(seed)
    f = rng.random(p * v) + 0.5
    b = 2 * f + rng.random(p * v) * 0.3
    whole = _simulate(f, b, p, m, "1f1b", 0.05)
    assert makespan(f, b, p, m, send=0.05) == pytest.approx(whole, rel=1e-2)  # very unequal chunks fill slowly
    assert whole >= m * (f + b).reshape(v, p).sum(axis=0).max()


def test_agrees_with_the_simulator_of_timelines() -> None:
    simulate = pytest.importorskip("autoparallel_core.cost.schedule_sim").simulate

    rng = np.random.default_rng(2)
    for p, v, m in ((4, 1, 12), (4, 2, 16), (3, 3, 9)):
        f, b = rng.random(p * v) + 0.5, rng.random(p * v) + 1.0
        timeline = simulate("1f1b", m, f.tolist(), b.tolist(), [0.0] * len(b), ranks=p, transfer_s=0.1)
        assert makespan(f, b, p, m, send=0.1) == pytest.approx(timeline.end_s)


@pytest.mark.parametrize(
    ("forward", "ranks", "m", "says"),
    [([1.0] * 3, 2, 4, "spread over 2"), ([1.0], 1, 0, "positive"), ([1.0] * 4, 2, 5, "multiple of 2")],
)
def test_impossible_pipelines_are_refused(forward: list[float], ranks: int, m: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        makespan(forward, forward, ranks, m)
