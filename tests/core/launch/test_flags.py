"""Flags as argparse programs take them; what is left over, sorted."""

from __future__ import annotations

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.launch.flags import Unset, options, parse, sort_leftover

TABLE = (
    *options("int", "--tp-size|-tp|--tp=tp", "--tokens"),
    *options("float", "--share"),
    *options("on", "--fast"),
    *options("off", "--no-overlap=overlap"),
    *options("str", "--name"),
    *options("strs", "--modules"),
)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--tp-size", "8"], "tp", 8),
        (["--tp-size=8"], "tp", 8),
        (["-tp", "8"], "tp", 8),
        (["-tp=8"], "tp", 8),
        (["--tp", "4", "--tp", "8"], "tp", 8),
        (["--tokens", "8k"], "tokens", 8000),
        (["--tokens", "8K"], "tokens", 8192),
        (["--tokens", "1e4"], "tokens", 10000),
        (["--tokens", "65_536"], "tokens", 65536),
        (["--share", ".9"], "share", 0.9),
        (["--fast"], "fast", True),
        (["--no-overlap"], "overlap", False),
        (["--modules", "a", "b", "--fast"], "modules", ["a", "b"]),
        (["--name=x=y"], "name", "x=y"),
    ],
)
def test_forms(words: list[str], key: str, value: object) -> None:
    parsed = parse(words, TABLE, program="p")
    assert parsed.get(key) == value
    assert parsed.given(key)


def test_what_is_not_given_is_absent_and_unknown_words_stay() -> None:
    parsed = parse(["model", "--fast", "--strange", "3", "-x"], TABLE, program="p")
    assert not parsed.given("tp")
    assert parsed.get("tp", 1) == 1
    assert parsed.extra == ("model", "--strange", "3", "-x")


def test_a_variable_without_value_is_no_number_and_is_named() -> None:
    parsed = parse(["--tp-size", "$TP", "--tokens", "$((A*B))", "--name", "$NAME"], TABLE, program="p")
    assert parsed.get("tp", 1) == 1
    assert isinstance(parsed.values["tp"], Unset)
    assert parsed.unset == ("$TP", "$((A*B))"), "text may be anything"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tp-size", "eight"], "p: --tp-size/-tp/--tp: 'eight' is not a whole number"),
        (["--tokens", "1.5"], "'1.5' is not a whole number"),
        (["--share", "most"], "'most' is not a number"),
        (["--tp-size"], "--tp-size/-tp/--tp: expected one argument"),
    ],
)
def test_refusals_name_the_flag_and_the_value(words: list[str], says: str) -> None:
    with pytest.raises(SpecError, match=says.replace("/", r"\/").replace(".", r"\.")):
        parse(words, TABLE, program="p")


def test_abbreviations_only_where_the_program_allows_them() -> None:
    assert parse(["--tok", "5"], TABLE, program="p", abbreviations=True).get("tokens") == 5
    assert parse(["--tok", "5"], TABLE, program="p").extra == ("--tok", "5")


def test_leftover_flags_are_harmless_notable_or_unknown() -> None:
    extra = ["--port", "8000", "--log_level=debug", "-1", "--graph-mode", "full", "--mystery", "model"]
    found = sort_leftover(extra, harmless="port log-.*", notable={"changes graphs": "graph-.* other"})
    assert found.unmodelled == ("--graph-mode changes graphs",)
    assert found.unknown == ("--mystery",)
