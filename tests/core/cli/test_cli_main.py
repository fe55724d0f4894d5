"""Dispatch, exit codes, start-up cost, and the ways a run can be cut short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoparallel_core.cli import advise
from autoparallel_core.cli.registry import COMMANDS
from autoparallel_core.errors import Infeasible, PluginConflict, SpecError

COMMAND = [sys.executable, "-m", "autoparallel_core.cli.main"]


@pytest.mark.parametrize(
    "argv", [["--help"], ["plan", "--help"], ["--version"], ["plugins"], ["plugins", "--json"], ["engines"], ["gpus"]]
)
def test_light_commands_load_neither_numpy_nor_torch(argv):
    code = (
        "import sys\nfrom autoparallel_core.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'torch'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.stdout


def test_help_lists_every_command_and_group(cli):
    ran = cli("--help")
    assert ran.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in ran.out
    for title in ("model:", "model by hand:", "cluster:", "workload: training only:", "output:"):
        assert title in ran.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_takes_no_plugin(cli, name):
    ran = cli(name, "--help")
    assert ran.code == 0
    assert f"usage: autoparallel {name}" in ran.out
    assert "--no-plugin NAME" in ran.out


def test_version(cli):
    from autoparallel_core.version import version

    assert cli("--version").out.strip() == f"autoparallel {version()}"


def test_misspelt_commands_and_flags_suggest_the_nearest(refused):
    assert "unknown command 'plugns'; did you mean plugins" in refused("plugns")
    assert "unknown flag --n-gpu; did you mean --n-gpus" in refused("--n-gpu", "8")
    assert "unknown flag --modle; did you mean --mode or --model" in refused("explain", "--modle", "x")
    assert "unexpected argument 'plugins'" in refused("--mode", "training", "plugins")


def test_argparse_complaints_are_one_sentence(refused):
    assert refused("--n-gpus") == "--n-gpus needs a value"
    assert refused("--n-gpus", "0") == "--n-gpus: 0 is too small, it must be at least 1"
    assert refused("--json=yes") == "--json takes no value, but was given 'yes'"


def test_no_plugin_before_the_command_works_as_behind_it(cli):
    before = cli("--no-plugin", "amd", "gpus", "--json").json
    assert before == cli("gpus", "--json", "--no-plugin=amd").json
    assert not any(g["vendor"] == "amd" for g in before["gpus"])
    assert any(g["vendor"] == "amd" for g in cli("gpus", "--json").json["gpus"])


@pytest.mark.parametrize(
    ("error", "code"), [(SpecError("a\n  b"), 2), (PluginConflict("two"), 2), (Infeasible("none"), 3), (KeyboardInterrupt(), 130)]
)
def test_errors_become_one_sentence_and_their_exit_code(cli, monkeypatch, error, code):
    def fail(_):
        raise error

    monkeypatch.setattr(advise, "run", fail)
    ran = cli("--hidden-size", "1")
    assert ran.code == code
    assert len(ran.err.splitlines()) == 1
    if str(error):
        assert ran.err == f"autoparallel: {' '.join(str(error).split())}\n"


def test_unreadable_files_are_one_sentence(cli, monkeypatch, tmp_path):
    def fail(_):
        (tmp_path / "gone").read_text()

    monkeypatch.setattr(advise, "run", fail)
    ran = cli("--hidden-size", "1")
    assert ran.code == 2
    assert "gone: No such file" in ran.err


def test_a_reader_that_goes_away_is_no_traceback():
    with subprocess.Popen([*COMMAND, "gpus"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        p.stdout.close()
        err = p.stderr.read()
    assert p.returncode == 141
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_piped_output_has_no_escape_codes_and_80_columns():
    env = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "FORCE_COLOR"}}
    done = subprocess.run([*COMMAND, "gpus"], capture_output=True, text=True, check=True, env=env)
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_output_survives_an_encoding_without_the_signs():
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([*COMMAND, "gpus", "show", "H100"], capture_output=True, check=False, env=env)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


def test_every_command_module_has_one_file():
    room = Path(advise.__file__).parent
    for command in COMMANDS.values():
        assert (room / f"{command.module.rsplit('.', 1)[1]}.py").is_file()
