"""A broken third-party plugin beside the command: one warning on standard error, the answer on standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_helpers import PRELUDE, install

MANUAL = (
    "--hidden-size",
    "1024",
    "--num-layers",
    "4",
    "--num-heads",
    "16",
    "--intermediate-size",
    "4096",
    "--vocab-size",
    "32000",
)
QUESTION = (*MANUAL, "--n-gpus", "8", "--gpu-type", "H100", "--json")
IMPORT = "autoparallel: warning: plugin 'broken' (engines, third-party 1.2) is left out: importing it raised ImportError: no luck"
RAISES = (
    "autoparallel: warning: plugin 'raises' (models, third-party 1.2): hook parse_ffn raised KeyError: 'x' (third_raises.py:4)"
)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("site")
    modules = {
        "third_import": "raise ImportError('no luck')\n",
        "third_raises": f"{PRELUDE}@hookimpl\ndef parse_ffn(config):\n    return {{}}['x']\n",
    }
    install(where, "third-party", modules, {"engines": {"broken": "third_import"}, "models": {"raises": "third_raises"}})
    return where


def command(where: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(where), **environment}
    code = "import sys; from autoparallel_core.cli.main import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, check=False)


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "third-party" in line]


def test_the_answer_stands_and_each_defect_is_one_line(broken: Path) -> None:
    done = command(broken, *QUESTION)
    assert done.returncode == 0
    assert json.loads(done.stdout)["strategies"]
    told = sorted(warnings(done))
    assert len(told) == 2
    assert told[0].startswith(IMPORT)
    assert told[1].startswith(RAISES)
    assert "Traceback" not in done.stderr


def test_the_answer_is_the_same_as_without_them(broken: Path) -> None:
    with_them, without = command(broken, *QUESTION), command(broken, *QUESTION, AUTOPARALLEL_DISABLE="broken,raises")
    assert warnings(without) == []
    plans = [json.loads(d.stdout)["strategies"] for d in (with_them, without)]
    assert plans[0] == plans[1]


def test_disabling_silences_and_a_wrong_name_is_told(broken: Path) -> None:
    done = command(broken, *QUESTION, "--no-plugin", "raises", "--no-plugin", "brokn")
    assert done.returncode == 0
    assert len(warnings(done)) == 1
    assert "autoparallel: warning: plugin 'brokn' is disabled but does not exist; did you mean broken?" in done.stderr


def test_a_failed_command_tells_which_plugin_was_left_out(broken: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    fields = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "num_attention_heads": 4}
    config.write_text(json.dumps({"model_type": "a-type-of-nobody", **fields}))
    done = command(broken, "--model-path", str(config), "--n-gpus", "8", "--gpu-type", "H100")
    assert done.returncode == 2
    assert any(line.startswith(RAISES) for line in warnings(done))
    assert "no model plugin knows the feed-forward of layer 1" in done.stderr.splitlines()[-1]


def test_plugins_shows_their_state(broken: Path) -> None:
    listed = json.loads(command(broken, "plugins", "--json").stdout)["plugins"]
    mine = {p["name"]: p for p in listed if p["distribution"] == "third-party"}
    assert mine["broken"]["status"] == "broken"
    assert "no luck" in mine["broken"]["reason"]
    assert mine["raises"]["status"] == "loaded"
