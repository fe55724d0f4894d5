"""Error statistics and ranking against hand calculations, and the terminal plot cell by cell."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.records import parse_record
from autoparallel_core.report.scatter import scatter, short
from autoparallel_core.runs.stats import (
    KEYS,
    ErrorStats,
    Ranking,
    by_group,
    families,
    join,
    measured_value,
    memory_pairs,
    verdicts,
)
from autoparallel_core.runs.validate import Prediction


def test_errors_by_hand():
    s = ErrorStats.of([(110, 100), (80, 100), (100, 100), (150, 100)])
    assert (s.n, s.median, s.mean, s.p90, s.bias) == (
        4,
        pytest.approx(0.15),
        pytest.approx(0.2),
        pytest.approx(0.5),
        pytest.approx(0.05),
    )
    assert ErrorStats.of([]) is None


def test_ranking_by_hand():
    # predicted order 1 2 3, measured 1 3 2: one of three pairs is wrong; the pick is the best
    r = Ranking.of([[(3, 30), (2, 10), (1, 20)]])
    assert (r.families, r.tau, r.regret) == (1, pytest.approx(1 / 3), 0)
    # picking the wrong one loses a quarter
    assert Ranking.of([[(3, 30), (2, 40), (1, 10)]]).regret == pytest.approx(0.25)
    # two runs are no family, equal measurements say nothing
    assert Ranking.of([[(1, 1), (2, 2)]]) is None
    assert Ranking.of([[(1, 100), (2, 100.2), (3, 100.4)]]) is None


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=3, max_size=7))
def test_tau_and_regret_stay_in_their_ranges(pairs):
    r = Ranking.of([pairs])
    if r:
        assert -1 <= r.tau <= 1
        assert 0 <= r.regret < 1
    perfect = Ranking.of([[(m, m) for _, m in pairs]])
    if perfect:
        assert (perfect.tau, perfect.regret) == (1, 0)


def row(name, measured, predicted, **more):
    r = parse_record({
        "id": name, "mode": "training", "model": {"kv_lora_rank": 1} if name == "m" else {}, "engine": more.pop("engine", "e"),
        "cluster": {"gpu": "G", "n_gpus": 2}, "workload": {"seq_len": 10, "global_batch_size": 4, "precision": "bf16"},
        "strategy": {}, "measured": measured, **more,
    })  # fmt: skip
    return r, Prediction(name, "ok", None, predicted)


def test_throughput_follows_from_the_step_time():
    r, _ = row("a", {"step_time_s": 2.0}, {})
    assert measured_value(r, "tokens_per_s_per_gpu") == pytest.approx(10)
    assert measured_value(r, "memory_gb") is None
    assert measured_value(row("b", {"step_time_s": -1}, {})[0], "step_time_s") is None


def test_groups_families_memory_and_verdicts():
    rows = [
        row("a", {"tokens_per_s_per_gpu": 100, "memory_gb": 10, "memory_kind": "allocated"},
            {"tokens_per_s_per_gpu": 90, "memory_gb": 11, "memory_reserved_gb": 14, "verdict": "fits"}, rank_family="f"),
        row("m", {"tokens_per_s_per_gpu": 100, "memory_gb": 20, "memory_kind": "device"},
            {"tokens_per_s_per_gpu": 120, "memory_gb": 17, "memory_reserved_gb": 18, "verdict": "tight"},
            rank_family="f", engine="x"),
        row("o", {"oom": True}, {"tokens_per_s_per_gpu": 1, "verdict": "does not fit"}, flags=["superseded: by another"]),
    ]  # fmt: skip
    compared = join([r for r, _ in rows], [p for _, p in rows] + [Prediction("z", "refused", "why")])
    assert [c.trusted for c in compared] == [True, True, False]
    groups = by_group(compared, "tokens_per_s_per_gpu", KEYS["model"])
    assert {k: (v.n, round(v.bias, 3)) for k, v in groups.items()} == {"dense": (1, -0.1), "mla": (1, 0.2)}
    assert set(by_group(compared, "tokens_per_s_per_gpu", KEYS["engine"])) == {"e", "x"}
    assert families(compared, "tokens_per_s_per_gpu") == [[(90.0, 100.0), (120.0, 100.0)]]
    assert memory_pairs(compared) == {"allocated": [(11.0, 10.0)], "device": [(18.0, 20.0)]}
    assert verdicts(compared) == {"ran": {"fits": 1, "tight": 1}, "out of memory": {"does not fit": 1}}


def test_the_plot_puts_marks_where_they_belong():
    lines = scatter([(1, 1), (100, 100), (100, 1)] + [(1, 100)] * 5, width=20, height=5)
    body = [line.split("|")[1].ljust(20) for line in lines[:5]]
    assert (body[4][0], body[0][19], body[0][0], body[4][19]) == (".", ".", ".", "@")
    assert body[2][9:11].strip() in {"/", "//"}
    assert lines[0].split("|")[0].strip() == short(10**2.02)
    assert scatter([]) == []


@given(st.lists(st.tuples(st.floats(1e-3, 1e7), st.floats(1e-3, 1e7)), min_size=1, max_size=30))
def test_every_run_is_in_the_plot_and_the_plot_in_its_width(pairs):
    lines = scatter(pairs, width=40, height=10)
    assert max(map(len, lines)) <= 40 + 10
    marks = sum(line.count(c) for line, c in itertools.product((x.split("|")[1] for x in lines[:10]), ".o@"))
    assert 1 <= marks <= len(pairs)


@pytest.mark.parametrize(
    ("v", "text"), [(0.5, "0.5"), (21, "21"), (999, "999"), (1500, "1.5k"), (178000, "178k"), (2.5e6, "2.5M")]
)
def test_short_numbers(v, text):
    assert short(v) == text
