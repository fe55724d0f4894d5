"""The commands of docs/how-to/choose-a-serving-deployment.md run, and print what the page shows, figures aside."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from autoparallel_core.cli.main import main

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/choose-a-serving-deployment.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```sh\n(autoparallel [^\n]+)\n```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
EXAMPLES = [(m[1], m[2] or "") for m in BLOCK.finditer(PAGE)]

HEADING = re.compile(r"#  |deployment  |\s{12,}(output|tok/s|end-to-end)|Best |At other|Nothing fits|Pareto|Aggregated")
"""Titles of sections and the heads of tables; sentences wrap where their figures have other widths."""


def shape(line: str) -> str:
    """A line without its figures: those move with every constant."""
    return " ".join(re.sub(r"[\d.,]+", "0", line).split())


def test_the_page_has_the_models_it_promises() -> None:
    commands = " ".join(c for c, _ in EXAMPLES)
    for words in ("Llama-3.1-70B", "DeepSeek-V3", "gpt-oss-120b", "Qwen3.5-397B-A17B", "gemma-3-27b", "--find-min-nodes"):
        assert words in commands
    assert "--gpu-hour-price" in commands


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[f"{i}" for i in range(len(EXAMPLES))])
def test_a_command_prints_what_the_page_shows(command: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(shlex.split(command)[1:])
    assert code == (3 if "Nothing fits" in shown else 0)
    if "--json" in command:
        body = json.loads(out.getvalue())
        assert body["frontier"]["points"]
        return
    printed = {shape(line) for line in out.getvalue().splitlines()}
    headings = [shape(line) for line in shown.splitlines() if HEADING.match(line)]
    assert headings
    assert [line for line in headings if line not in printed] == []
