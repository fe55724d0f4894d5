from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_builders import dense, inference, rule, training

from autoparallel_core.errors import PluginContract, SpecError
from autoparallel_core.search.rules import ReadsOptions, apply_rules, broken, rules_for, violations
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

PROBLEM = training(dense(4, 1024, 16, 4, 4096, 32000), 8)
RULES = (
    rule("tp ≤ 2", lambda _p, s: s.tp > 2),
    rule("pp even", lambda _p, s: s.pp % 2 == 1),
    rule("never", lambda _p, s: s.tp < 0),
    rule("tp pp ≤ 8", lambda _p, s: s.tp * s.pp > 8),
)


class FakeHost:
    """Answers the rules hook with what each plugin declares."""

    def __init__(self, **plugins: Any) -> None:
        self.plugins = plugins

    def call(self, group: str, hook: str, **arguments: Any) -> list[tuple[Any, Any]]:
        assert (group, hook, set(arguments)) == ("engines", "rules", {"problem"})
        return [(SimpleNamespace(name=name), rules) for name, rules in self.plugins.items()]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=60))
@settings(deadline=None)
def test_counts_equal_a_loop_over_strategies(degrees: list[tuple[int, int]]) -> None:
    strategies = [Strategy(tp=tp, pp=pp) for tp, pp in degrees]
    legal, refused = apply_rules(PROBLEM, StrategyBatch.of(strategies), RULES)
    expected: dict[str, int] = {}
    for i, s in enumerate(strategies):
        hits = [r.id for r in RULES if r.broken(PROBLEM, StrategyBatch.of([s]))[0]]
        assert legal[i] == (not hits)
        if hits:
            expected[hits[0]] = expected.get(hits[0], 0) + 1
    assert refused == expected


def test_every_violation_of_one_strategy_is_said() -> None:
    found = violations(PROBLEM, Strategy(tp=4, pp=3), RULES)
    assert [v.rule for v in found] == ["tp ≤ 2", "pp even", "tp pp ≤ 8"]
    assert found[0].sentence == "tp4 pp3 dp1 mbs1 sp=off is broken"
    assert found[0].source == "test"
    assert violations(PROBLEM, Strategy(tp=2, pp=2), RULES) == []


@pytest.mark.parametrize(
    ("result", "got"), [(np.zeros(1, dtype=bool), r"bool\[1\]"), (np.zeros(3), r"float64\[3\]"), ([True] * 3, "list")]
)
def test_a_rule_of_the_wrong_shape_or_type_is_named(result: Any, got: str) -> None:
    bad = Rule("odd", lambda _p, _b: result, lambda _p, _s: "", "here")
    with pytest.raises(PluginContract, match=rf"rule 'odd' \(here\) must return bool\[3\], not {got}"):
        broken(PROBLEM, StrategyBatch.from_columns(3), bad)


def test_a_missing_column_is_signalled() -> None:
    layouts = StrategyBatch({"tp": np.ones(2, dtype=np.int64)})
    with pytest.raises(ReadsOptions):
        broken(PROBLEM, layouts, rule("zero", lambda _p, s: s.zero > 0))


def test_rules_of_the_mode_and_version() -> None:
    declared = [
        rule("always", lambda _p, _s: False),
        rule("old", lambda _p, _s: False, until="1.0"),
        rule("new", lambda _p, _s: False, since="1.0"),
        rule("serving", lambda _p, _s: False, modes=("inference",)),
    ]
    host = FakeHost(engine=declared)
    assert [r.id for r in rules_for(PROBLEM, host)] == ["always", "new"]
    assert [r.id for r in rules_for(evolve(PROBLEM, engine_version="0.9.3"), host)] == ["always", "old"]
    assert [r.id for r in rules_for(inference(PROBLEM.arch, 8), host)] == ["always", "new", "serving"]
    with pytest.raises(SpecError, match="engine version 'main'"):
        rules_for(evolve(PROBLEM, engine_version="main"), host)


def test_order_does_not_depend_on_registration() -> None:
    a, b = [rule("a", lambda _p, _s: False)], [rule("b", lambda _p, _s: False)]
    assert rules_for(PROBLEM, FakeHost(one=a, two=b)) == rules_for(PROBLEM, FakeHost(two=b, one=a))


def test_one_id_may_hold_in_turns_but_not_twice() -> None:
    turns = [rule("kv", lambda _p, _s: False, until="1.0"), rule("kv", lambda _p, _s: False, since="1.0")]
    assert len(rules_for(PROBLEM, FakeHost(engine=turns))) == 1
    same = [rule("kv", lambda _p, _s: False)]
    with pytest.raises(PluginContract, match="rule 'kv' is declared twice, by plugins 'one' and 'two'"):
        rules_for(PROBLEM, FakeHost(one=same, two=same))


def test_something_that_is_no_rule_is_named() -> None:
    with pytest.raises(PluginContract, match="plugin 'one': hook rules must return Rule objects, not str"):
        rules_for(PROBLEM, FakeHost(one=["tp"]))
