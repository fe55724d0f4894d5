"""Wheels of ours and of the example, installed side by side in a clean environment: both are used, nothing is edited."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "autoparallel-example"

pytestmark = pytest.mark.packaging


def run(*command: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run outside the checkout, with no variable that could lead back into it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AUTOPARALLEL", "VIRTUAL_ENV"))}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{' '.join(map(str, command))} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("wheels")
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    for source in (ROOT, EXAMPLE):
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "--wheel-dir", out, source, cwd=out)
    return {w.name.split("-")[0]: w for w in out.glob("*.whl")}


@pytest.fixture(scope="module")
def python(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds both wheels and what they depend on, from the package index."""
    where = tmp_path_factory.mktemp("clean")
    venv.create(where / "venv", with_pip=True)
    python = where / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *wheels.values(), "pytest", cwd=where)
    return python


def answer(python: Path, *arguments: str, code: int = 0) -> dict:
    done = run(python.parent / "autoparallel", *arguments, "--json", cwd=python.parent, code=code)
    return json.loads(done.stdout)


def test_the_wheels_hold_what_they_should(wheels: dict[str, Path]) -> None:
    assert set(wheels) == {"autoparallel_advisor", "autoparallel_example"}
    tops = {name: {n.split("/")[0] for n in zipfile.ZipFile(w).namelist()} for name, w in wheels.items()}
    assert tops["autoparallel_example"] == {
        "example_gaudi", "example_lattice", "example_scan", "example_tandem", "autoparallel_example-1.0.0.dist-info",
    }  # fmt: skip
    ours = {t for t in tops["autoparallel_advisor"] if not t.endswith(".dist-info")}
    assert "autoparallel_core" in ours
    assert all(t.startswith("autoparallel_") for t in ours)
    data = zipfile.ZipFile(wheels["autoparallel_advisor"]).namelist()
    assert any(n.startswith("autoparallel_nvidia/data/") for n in data)
    assert "autoparallel_core/py.typed" in data


def test_both_distributions_run_from_the_environment(python: Path) -> None:
    code = (
        "import autoparallel_core, example_lattice, sys; from importlib.metadata import files;"
        "print(autoparallel_core.__file__, example_lattice.__file__, 'direct' in str(files('autoparallel-advisor')))"
    )
    where = run(python, "-c", code, cwd=python.parent).stdout
    assert where.count("site-packages") == 2
    assert str(ROOT) not in where


def test_plugins_lists_both(python: Path) -> None:
    listed = answer(python, "plugins")["plugins"]
    example = {p["name"]: p for p in listed if p["distribution"] == "autoparallel-example"}
    assert {n: (p["kind"], p["version"], p["status"]) for n, p in example.items()} == {
        "gaudi": ("hardware", "1.0.0", "loaded"),
        "lattice": ("engines", "1.0.0", "loaded"),
        "scan": ("planners", "1.0.0", "loaded"),
        "tandem": ("models", "1.0.0", "loaded"),
    }
    assert set(example["lattice"]["hooks"]) == {"engines", "search_space", "rules", "memory", "adjust_cost"}
    ours = [p for p in listed if p["distribution"] == "autoparallel-advisor"]
    assert len(ours) > 10
    assert [p for p in ours if p["status"] != "loaded"] == []


def test_a_search_uses_accelerator_engine_and_model_of_the_example(python: Path) -> None:
    asked = ("--model", "example-org/Tandem-7B", "--n-gpus", "64", "--gpu-type", "gaudi-3", "--engine", "lattice")
    found = answer(python, *asked)
    text = json.dumps(found)
    assert "Gaudi-3-128GB" in text
    assert "lattice" in text
    best = found["strategies"][0]["strategy"]
    assert found["refusals"]["tp cp inside a node"] > 0
    disabled = run(python.parent / "autoparallel", *asked, "--no-plugin", "lattice", cwd=python.parent, code=2)
    assert "unknown engine 'lattice'" in disabled.stderr
    assert "is disabled" in disabled.stderr
    assert best


def test_the_conformance_suite_passes_for_ours_and_the_example(python: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")  # away from the checkout and its pytest settings
    example = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=tmp_path)
    assert " passed" in example.stdout
    assert "skipped" not in example.stdout
    everything = run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "autoparallel_core.testing.conformance", cwd=tmp_path
    )
    assert " passed" in everything.stdout
