"""Closed forms of the pipeline schedules against the discrete-event simulator."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_builders import price, problem, strategy

from autoparallel_core.cost.pipeline import idle_s, in_flight
from autoparallel_core.cost.schedule_orders import orders
from autoparallel_core.cost.schedule_sim import simulate
from autoparallel_core.errors import SpecError
from autoparallel_core.search.trace import AFTER, timeline, trace_events

RANKS = st.integers(1, 6)
SECONDS = st.floats(0.2, 2.0)


def closed(schedule: str, p: int, v: int, f: float, b: float, w: float, slowest: float) -> float:
    one = [np.array([float(x)]) for x in (p, v, f, b, w, slowest)]
    return float(idle_s(schedule, *one)[0])


@given(p=RANKS, extra=st.integers(0, 12), f=SECONDS, b=SECONDS, w=SECONDS)
@settings(deadline=None)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_even_stages_idle_exactly_p_minus_1_times(schedule, p, extra, f, b, w):
    """(p-1)(F+B), arXiv 2104.04473, section 2.2."""
    run = simulate(schedule, p + extra, [f] * p, [b] * p, [w] * p, ranks=p)
    assert run.bubble_s == pytest.approx((p - 1) * (f + b + w))
    assert run.bubble_s == pytest.approx(closed(schedule, p, 1, f, b + w, w, f + b + w), abs=1e-9)


@given(p=RANKS, v=st.integers(2, 4), groups=st.integers(1, 4), f=SECONDS, b=SECONDS)
@settings(deadline=None)
def test_interleaving_divides_the_bubble_by_v(p, v, groups, f, b):
    """Bubble of arXiv 2104.04473, section 2.2.2, with a backward no shorter than the forward, as in training."""
    b = max(b, f)
    run = simulate("1f1b", p * groups, [f] * (p * v), [b] * (p * v), [0.0] * (p * v), ranks=p)
    whole = v * (f + b)
    assert run.bubble_s == pytest.approx((p - 1) / v * whole)
    assert run.bubble_s == pytest.approx(closed("1f1b", p, v, f, b, 0.0, whole), abs=1e-9)


@given(p=RANKS, extra=st.integers(0, 12), f=SECONDS, w=SECONDS, b=SECONDS)
@settings(deadline=None)
def test_zero_bubble_of_three_alike_parts(p, extra, f, w, b):
    """ZB-H1: (p-1)(F+B-W), arXiv 2401.10241, table 2, where W fits into the gaps (W ≤ F and W ≤ B)."""
    w = min(w, f, b)
    run = simulate("zero_bubble", 2 * p + extra, [f] * p, [b] * p, [w] * p, ranks=p)
    assert run.bubble_s == pytest.approx((p - 1) * (f + b - w))
    assert run.bubble_s == pytest.approx(closed("zero_bubble", p, 1, f, b + w, w, f + b + w), abs=1e-9)


@given(p=RANKS, extra=st.integers(0, 8), f=SECONDS)
@settings(deadline=None)
def test_dualpipe_v_of_equal_parts(p, extra, f):
    """(PP/2-1)(F&B+B-3W) of 2p chunks, deepseek-ai/DualPipe README: 2(p-1) forwards when F = B = W of one chunk."""
    chunks = 2 * p
    run = simulate("dualpipe_v", chunks + extra, [f] * chunks, [f] * chunks, [f] * chunks, ranks=p)
    assert run.bubble_s == pytest.approx(2 * (p - 1) * f)
    assert run.bubble_s == pytest.approx(closed("dualpipe_v", p, 2, f, 2 * f, f, 6 * f), abs=1e-9)


@given(data=st.data(), p=st.integers(2, 6), extra=st.integers(0, 20))
@settings(deadline=None)
def test_uneven_stages_never_take_longer_than_the_closed_form(data, p, extra):
    """m·max + the others bounds 1F1B, and is exact where the last stage is the slowest (the head's)."""
    times = data.draw(st.lists(SECONDS, min_size=p, max_size=p))
    m = p + extra
    f, b = times, [2 * t for t in times]
    run = simulate("1f1b", m, f, b, [0.0] * p, ranks=p)
    stage = [3 * t for t in times]
    bound = m * max(stage) + sum(stage) - max(stage)
    assert run.end_s <= bound + 1e-9
    assert run.end_s >= m * max(stage) - 1e-9
    times.sort()
    run = simulate("1f1b", m, times, [2 * t for t in times], [0.0] * p, ranks=p)
    assert run.end_s == pytest.approx(bound)


@given(p=RANKS, v=st.integers(1, 4), groups=st.integers(1, 3))
@settings(deadline=None)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble", "dualpipe_v"])
def test_micro_batches_in_flight(schedule, p, v, groups):
    """What the memory model counts is what the schedule holds, in chunks."""
    v = {"1f1b": v, "dualpipe_v": 2}.get(schedule, 1)
    m = 2 * p * groups
    run = simulate(schedule, m, [1.0] * (p * v), [1.0] * (p * v), [1.0] * (p * v), ranks=p)
    for rank in range(p):
        counted = in_flight(schedule, *(np.array([float(x)]) for x in (p, v, m, rank)))[0] * v
        assert run.peak_in_flight(rank) == counted, (rank, counted)


@given(p=RANKS, v=st.integers(1, 3), groups=st.integers(1, 3))
@settings(deadline=None)
def test_every_micro_batch_passes_every_stage_once_and_in_order(p, v, groups):
    m = p * groups
    run = simulate("1f1b", m, [1.0] * (p * v), [1.0] * (p * v), [0.5] * (p * v), ranks=p, transfer_s=0.1)
    ends = {(s.task.kind, s.task.micro, s.task.stage): (s.start_s, s.end_s) for s in run.slots}
    assert len(ends) == len(run.slots) == 2 * m * p * v
    for (kind, micro, stage), (start, _) in ends.items():
        if kind == "F" and stage:
            assert start >= ends["F", micro, stage - 1][1] + (0.1 if p > 1 else 0.0) - 1e-9
        if kind == "B":
            assert start >= ends["F", micro, stage][1] - 1e-9
    for rank in range(p):
        mine = sorted((s.start_s, s.end_s) for s in run.slots if s.rank == rank)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(mine))


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m", "word"),
    [
        ("1f1b", 4, 2, 6, "multiples of p 4"),
        ("gpipe", 2, 2, 4, "one stage per rank"),
        ("zero_bubble", 2, 2, 4, "one stage per rank"),
        ("dualpipe_v", 4, 2, 7, "at least 8"),
        ("dualpipe_v", 4, 1, 8, "2 chunks"),
        ("sideways", 2, 1, 2, "known: 1f1b"),
        ("1f1b", 0, 1, 2, "at least one"),
    ],
)
def test_impossible_schedules_are_refused(schedule, p, v, m, word):
    with pytest.raises(SpecError, match=word):
        orders(schedule, p, v, m)


def test_times_that_fit_no_ranks_are_refused():
    with pytest.raises(SpecError, match="do not fit"):
        simulate("1f1b", 4, [1.0] * 3, [1.0] * 3, [1.0] * 3, ranks=2)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("1f1b", "tp4 pp4 dp4 mbs1 zero1"),
        ("1f1b", "tp4 pp4 dp4 vpp4 mbs1 zero1"),
        ("1f1b", "tp4 pp4 dp4 vpp2 mbs1 zero1 recompute=full:3"),
        ("1f1b", "tp2 pp8 dp4 mbs1 zero1 recompute=selective"),
        ("gpipe", "tp4 pp4 dp4 mbs1 zero1"),
        ("zero_bubble", "tp4 pp4 dp4 mbs1 zero1"),
        ("dualpipe_v", "tp4 pp4 dp4 vpp2 mbs1 zero1"),
    ],
)
def test_the_evaluator_agrees_with_the_simulator(schedule, text):
    """Ends of the model, recompute and transfers included; the closed form of a whole step within 3%."""
    p = problem(pipeline_schedule=schedule)
    run, shown = timeline(p, strategy(text))
    seconds = price(p, text).seconds
    pipeline = sum(float(v[0]) for k, v in seconds.items() if k not in AFTER)
    assert shown == 64
    assert run.end_s == pytest.approx(pipeline, rel=0.03)


def test_trace_events_cover_the_step():
    p = problem()
    s = strategy("tp4 pp4 dp4 vpp2 mbs1 zero1")
    events = trace_events(p, s)
    run, _ = timeline(p, s)
    spans = [e for e in events if e["ph"] == "X"]
    assert len([e for e in spans if e["cat"] in {"forward", "backward"}]) == 2 * 64 * 8
    assert {e["pid"] for e in spans} == {0, 1, 2, 3}
    assert max(e["ts"] + e["dur"] for e in spans) >= run.end_s * 1e6
    seconds = price(p, str(s)).seconds
    after = sum(float(seconds[k][0]) for k in AFTER)
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx((run.end_s + after) * 1e6)
    assert [e["name"] for e in events if e["ph"] == "i"] == ["64 micro-batches"]
