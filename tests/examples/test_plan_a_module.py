"""docs/how-to/plan-a-module.md: its code is the example's, its commands are legal, its journey runs on the tiny model."""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autoparallel_core.cli.main import main
from autoparallel_core.cli.parser import Parser

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plan-a-module"
PAGE = (ROOT / "docs" / "how-to" / "plan-a-module.md").read_text(encoding="utf-8")
STEPS = 10


def commands(kind: str) -> list[list[str]]:
    """The commands of the blocks that the page marks so."""
    blocks = re.findall(rf"<!-- {kind} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_code_is_quoted_from_the_example() -> None:
    blocks = re.findall(r"<!-- from: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in blocks] == ["train.py", "my_model.py"]
    for name, code in blocks:
        assert code.strip("\n") in (EXAMPLE / name).read_text(encoding="utf-8"), name


def test_every_command_is_legal() -> None:
    from autoparallel_core.cli import plan

    found = [c for kind in ("large", "tiny", "own") for c in commands(kind)]
    assert len(found) == 9
    for command in found:
        assert command[:2] == ["autoparallel", "plan"]
        subparsers = Parser(prog="autoparallel").add_subparsers()
        plan.add_parser(subparsers)
        parsed = subparsers.choices["plan"].parse_args(command[2:])
        assert isinstance(parsed, argparse.Namespace)


@pytest.mark.torch
def test_the_journey_on_four_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    room = tmp_path / "room"
    shutil.copytree(EXAMPLE, room)
    monkeypatch.chdir(room)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for command in commands("tiny"):
        here = command[: command.index("--processes")] if "--processes" in command else command  # processes have a test elsewhere
        assert main(here[1:]) == 0, command
    assert "The plan computes what the module computes." in capsys.readouterr().out
    assert (room / "tiny.html").stat().st_size > 10_000
    (_, *single), together_command = commands("train")
    monkeypatch.setattr(sys, "argv", single)
    runpy.run_path(single[0], run_name="__main__")
    alone, together = losses(capsys.readouterr().out), losses(output(together_command, room))
    assert len(alone) == len(together) == STEPS
    assert alone[-1] < 0.7 * alone[0]
    assert together == pytest.approx(alone, abs=2e-4)


def output(command: list[str], room: Path) -> str:
    assert command[0] == "python"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command[1:]], cwd=room, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def losses(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss ([\d.]+)", text)]
