"""docs/reference/cli.md lists every command and flag, with the words of --help, and every token of the notation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoparallel_core.cli.flags import PROBLEM_FLAGS
from autoparallel_core.cli.registry import COMMANDS
from autoparallel_core.spec.strategy import Strategy, format_strategy

DOC = (Path(__file__).resolve().parents[3] / "docs/reference/cli.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(--[\w-]+)[^`]*` \| (.*) \|$", DOC, flags=re.MULTILINE))


def test_every_flag_is_documented_in_the_words_of_help():
    assert {f.name: f.help for f in PROBLEM_FLAGS} == {k: v for k, v in ROWS.items() if k in {f.name for f in PROBLEM_FLAGS}}


@pytest.mark.parametrize("argv", [["--help"], ["explain", "--help"]])
def test_no_flag_of_the_command_is_missing(cli, argv):
    shown = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", cli(*argv).out, flags=re.MULTILINE))
    assert shown - set(ROWS) == {"--help", "--no-plugin"} | ({"--version"} if argv == ["--help"] else set())
    assert "--no-plugin NAME" in DOC
    assert "--version" in DOC


def test_no_documented_flag_is_gone(cli):
    shown = set(re.findall(r"--[\w-]+", cli("--help").out + cli("explain", "--help").out))
    assert set(ROWS) <= shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name):
    assert re.search(rf"^\| `{name}[` ]", DOC, flags=re.MULTILINE)


def test_every_token_of_the_notation_is_documented():
    full = Strategy(
        tp=2, sp=0, pp=2, vpp=2, cp=2, ep=2, etp=2, dp=2, shard=2, zero=1, mbs=2, recompute=2, recompute_layers=3, offload=1,
        attn_dp=2,
    )  # fmt: skip
    for token in format_strategy(full).split():
        name = re.sub(r"[\d:]+$", "", token)
        pattern = f"`{name}N`" if "=" not in name else name.split("=")[0] + "="
        assert pattern in DOC, pattern


@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize(
    ("mode", "engine"), [("training", "megatron"), ("training", "fsdp"), ("inference", "vllm"), ("inference", "sglang")]
)
def test_every_cause_of_time_and_memory_is_documented(mode, engine, moe):
    from autoparallel_core.cost.layer_sum import CAUSES as TRAINING
    from autoparallel_core.cost.serving_step import CAUSES as SERVING
    from autoparallel_core.host import host
    from autoparallel_core.report.causes import words
    from autoparallel_core.search.evaluate import evaluate
    from autoparallel_core.spec.strategy import StrategyBatch
    from autoparallel_core.testing.toys import toy_dense_arch, toy_moe_arch, toy_problem

    problem = toy_problem(engine, mode, host=host(), arch=toy_moe_arch() if moe else toy_dense_arch())
    e = evaluate(problem, StrategyBatch.of([Strategy(dp=8)]), host())
    section = DOC.split("### Causes of time")[1].split("### Origins")[0]
    for cause in {*TRAINING, *SERVING, *e.seconds, *e.memory}:
        if " " in cause.split(":")[0]:  # a plugin's own, in words
            continue
        name = f"{cause.split(':')[0]}: …" if ":" in cause and not cause.startswith("activation") else cause.split(":")[0]
        assert f"`{name}`" in section, name
        said = words(cause)
        assert ":" in cause or said.casefold() == cause.replace("_", " ") or f"({said})" in section, said
