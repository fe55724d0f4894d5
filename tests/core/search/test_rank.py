from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autoparallel_core.search.rank import TIE, NearestMiss, ParetoFront, TopK, plainness, rank_order
from autoparallel_core.spec.strategy import COLUMNS, Strategy, StrategyBatch, parse_strategy

Floats = NDArray[np.float64]


def key(s: Strategy) -> tuple[int, ...]:
    """The tie-break as the documentation words it, for one strategy."""
    dims = sum(getattr(s, c) > 1 for c in ("tp", "pp", "vpp", "cp", "ep", "etp", "attn_dp")) + (s.offload > 0)
    dims += s.zero > 0 and s.shard != s.dp * s.cp
    return (
        dims, s.tp, s.pp, s.cp, s.ep, s.etp, s.vpp, s.attn_dp, s.recompute, -(s.recompute_layers > 0), s.recompute_layers,
        s.offload, s.zero, -s.shard, s.mbs, -s.sp, s.dp,
    )  # fmt: skip


def by_definition(strategies: list[Strategy], score: list[float], tie: float) -> list[Strategy]:
    """Group from the top, then sort each group by plainness."""
    left = sorted(range(len(strategies)), key=lambda i: -score[i])
    out: list[Strategy] = []
    while left:
        lead = score[left[0]]
        group = [i for i in left if score[i] >= lead - abs(lead) * tie]
        left = left[len(group) :]
        out += sorted((strategies[i] for i in group), key=key)
    return out


def random_strategies(seed: int, n: int) -> list[Strategy]:
    rng = np.random.default_rng(seed)
    powers = (1, 2, 4, 8)
    found = {
        Strategy(
            tp=int(rng.choice(powers)), pp=int(rng.choice(powers)), vpp=int(rng.choice((1, 2))), cp=int(rng.choice((1, 2))),
            ep=int(rng.choice(powers)), dp=int(rng.choice(powers)), mbs=int(rng.choice(powers)), zero=int(rng.integers(0, 4)),
            recompute=int(rng.integers(0, 3)), offload=int(rng.integers(0, 2)),
        )
        for _ in range(n)
    }  # fmt: skip
    return sorted(found, key=key)


def in_parts(strategies: list[Strategy], *arrays: Floats, parts: int) -> list[tuple[StrategyBatch, list[Floats]]]:
    index = np.array_split(np.arange(len(strategies)), parts)
    return [(StrategyBatch.of([strategies[i] for i in part]), [a[part] for a in arrays]) for part in index if len(part)]


scores = st.lists(st.sampled_from([100.0, 99.5, 99.1, 98.5, 98.0, 90.0, 50.0, 3.0]), min_size=1, max_size=120)


@given(scores, st.integers(0, 50), st.integers(1, 12), st.integers(1, 7), st.sampled_from([1.0, -1.0]))
@settings(deadline=None)
def test_top_k_in_any_parts_equals_the_definition(values: list[float], seed: int, k: int, parts: int, sign: float) -> None:
    strategies = random_strategies(seed, len(values))
    score = np.array(values[: len(strategies)]) * sign
    top = TopK(k)
    for batch, (s,) in in_parts(strategies, score, parts=parts):
        top.add(batch, s)
    expected = by_definition(strategies, score.tolist(), TIE)[:k]
    assert list(top.ranked()[0]) == expected


@given(scores, st.integers(0, 50))
@settings(deadline=None)
def test_rank_order_is_the_definition(values: list[float], seed: int) -> None:
    strategies = random_strategies(seed, len(values))
    score = np.array(values[: len(strategies)])
    order = rank_order(StrategyBatch.of(strategies), score)
    assert [strategies[i] for i in order] == by_definition(strategies, score.tolist(), TIE)


def test_groups_are_led_from_the_top() -> None:
    a, b, c = (parse_strategy(t) for t in ("tp8 pp8 dp1", "tp8 pp1 dp8", "tp1 pp1 dp64"))
    score = np.array([1000.0, 995.0, 989.0])  # c ties with b, but not with the leader a
    assert [int(i) for i in rank_order(StrategyBatch.of([a, b, c]), score)] == [1, 0, 2]


@pytest.mark.parametrize(
    ("plain", "exotic"),
    [
        ("tp1 pp1 dp64", "tp2 pp1 dp32"),
        ("tp8 pp1 dp8", "tp2 pp2 dp16"),
        ("tp2 pp4 dp8", "tp4 pp2 dp8"),
        ("tp2 pp1 dp32", "tp2 pp1 dp32 recompute=selective"),
        ("tp2 pp1 dp32 recompute=full:4", "tp2 pp1 dp32 recompute=full:8"),
        ("tp2 pp1 dp32 recompute=full:8", "tp2 pp1 dp32 recompute=full"),
        ("tp2 pp1 dp32 recompute=full", "tp2 pp1 dp32 offload=optimizer"),
        ("tp2 pp1 dp32 zero1", "tp2 pp1 dp32 zero3"),
        ("tp2 pp1 dp32 zero3", "tp2 pp1 dp32 zero3 shard8"),
        ("tp2 pp1 dp32", "tp2 pp1 dp32 sp=off"),
    ],
)
def test_the_plainer_one_wins_a_tie(plain: str, exotic: str) -> None:
    batch = StrategyBatch.of([parse_strategy(exotic), parse_strategy(plain)])
    assert str(batch[int(rank_order(batch, np.array([1.005, 1.0]))[0])]) == str(parse_strategy(plain))
    assert int(rank_order(batch, np.array([1.02, 1.0]))[0]) == 0, "outside the tie the faster one wins"


def test_memory_stays_bounded_when_everything_ties() -> None:
    top = TopK(5)
    n = 30_000
    for start in range(0, 10 * n, n):
        mbs = np.arange(start, start + n)[::-1] + 1
        top.add(StrategyBatch.from_columns(n, mbs=mbs), np.ones(n))
        assert len(top.batch) <= top.limit
    assert top.ranked()[0].mbs.tolist() == [1, 2, 3, 4, 5]
    assert len(top.batch) <= 4096


def test_plainness_is_a_total_order() -> None:
    strategies = random_strategies(1, 300)
    columns = plainness(StrategyBatch.of(strategies))
    assert len({tuple(int(c[i]) for c in columns) for i in range(len(strategies))}) == len(strategies)
    assert len(columns) >= len(COLUMNS) - 1


points = st.lists(st.tuples(st.integers(0, 12), st.integers(-6, 6)), min_size=1, max_size=80)


@given(points, st.integers(0, 50), st.integers(1, 6))
@settings(deadline=None)
def test_pareto_equals_brute_force(values: list[tuple[int, int]], seed: int, parts: int) -> None:
    strategies = random_strategies(seed, len(values))
    values = values[: len(strategies)]
    score, margin = (np.array(v, dtype=np.float64) for v in zip(*values, strict=True))
    front = ParetoFront()
    for batch, (s, m) in in_parts(strategies, score, margin, parts=parts):
        front.add(batch, s, m)
    expected: dict[tuple[int, int], Strategy] = {}
    for strategy, v in zip(strategies, values, strict=True):  # in order of plainness
        if not any((o[0] >= v[0] and o[1] >= v[1]) and o != v for o in values):
            expected.setdefault(v, strategy)
    found = {(int(s), int(m)): b for s, m, b in zip(front.score, front.margin, front.batch, strict=True)}
    assert found == expected
    assert np.all(np.diff(front.score) < 0)
    assert np.all(np.diff(front.margin) > 0)


def test_thinned_front_keeps_both_ends() -> None:
    n = 100
    front = ParetoFront()
    front.add(StrategyBatch.from_columns(n, mbs=np.arange(1, n + 1)), np.arange(n, 0, -1.0), np.arange(n, dtype=np.float64))
    assert front.thinned(200).mbs.tolist() == list(range(1, n + 1))
    thin = front.thinned(12).mbs.tolist()
    assert len(thin) == 12
    assert (thin[0], thin[-1]) == (1, n)


def test_nearest_miss_is_the_smallest_excess_then_the_fastest() -> None:
    miss = NearestMiss()
    miss.add(StrategyBatch.from_columns(2, tp=[8, 4]), np.array([1.5, 1.2]), np.array([9.0, 1.0]))
    miss.add(StrategyBatch.from_columns(3, tp=[2, 1, 16]), np.array([1.2, 1.2, 1.3]), np.array([2.0, 2.0, 50.0]))
    assert (miss.strategy, miss.excess) == (Strategy(tp=1), 1.2)
    miss.add(StrategyBatch.from_columns(0), np.zeros(0), np.zeros(0))
    assert miss.strategy == Strategy(tp=1)


def test_room_in_memory_wins_a_tie_before_plainness() -> None:
    plain, roomy = parse_strategy("tp1 pp1 dp64"), parse_strategy("tp8 pp2 dp4")
    batch = StrategyBatch.of([plain, roomy])
    score = np.array([1.0, 0.995])
    assert int(rank_order(batch, score, tight=np.array([True, False]))[0]) == 1
    assert int(rank_order(batch, score, tight=np.array([False, False]))[0]) == 0
    assert int(rank_order(batch, np.array([1.02, 1.0]), tight=np.array([True, False]))[0]) == 0, "a real difference counts"
    top = TopK(1)
    top.add(batch, score, np.array([True, False]))
    assert list(top.ranked()[0]) == [roomy]
