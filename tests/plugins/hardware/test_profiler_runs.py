"""The profiler on this machine's processor, for real and small: two gloo ranks, an interruption, a budget, the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autoparallel_core.cli.main import main
from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.profiles.apply import apply_profile
from autoparallel_core.profiles.files import read_profile
from autoparallel_profiler import ray_entry
from autoparallel_profiler.request import Request

pytest.importorskip("torch", reason="measuring needs torch")
pytestmark = pytest.mark.torch

PROBES = (
    {"table": "gemm", "dtype": "bf16", "m": 32, "n": 64, "k": 64},
    {"table": "memory", "op": "copy", "bytes": 2**20},
    {"table": "collectives", "kind": "all_reduce", "bytes": 4096, "ranks": 2, "nodes": 1},
    {"table": "p2p", "bytes": 4096, "nodes": 1},
    {"table": "gemm", "dtype": "fp8", "m": 32, "n": 64, "k": 64},
    {"table": "launch", "what": "sharded_layer"},
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "autoparallel" / "profiles"


def test_two_ranks_measure_and_resume(tmp_path: Path):
    """One line per probe, whatever each rank saw; a second start measures only what is missing."""
    journal = tmp_path / "journal.jsonl"
    journal.write_text("{}\n")
    request = Request("cpu", PROBES, str(journal), 2, seconds_per_probe=0.01)
    request.write(tmp_path / "request.json")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "autoparallel_profiler.worker",
        str(tmp_path / "request.json"),
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    first, *lines = map(json.loads, journal.read_text().splitlines())
    assert first == {}
    assert [line["probe"] for line in lines] == list(PROBES)
    assert all(line["seconds"] > 0 for line in lines[:4])
    assert "fp8 matrix products need an accelerator" in lines[4]["failed"]
    assert 1e-5 < lines[5]["seconds"] < 1.0  # Python's dispatch of some forty operators
    journal.write_text("{}\n" + "\n".join(map(json.dumps, lines[:3])) + "\n")
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True)
    again = [json.loads(x) for x in journal.read_text().splitlines()[1:]]
    assert again[:3] == lines[:3]
    assert [line["probe"] for line in again[3:]] == list(PROBES[3:])


def test_one_operator_through_the_hook():
    found = host().measure({"kind": "gemm", "device": "cpu", "dtype": "bf16", "m": 16, "n": 32, "k": 32})
    assert found is not None
    assert 0 < found["seconds"] < 1
    assert host().measure({"kind": "nothing of the sort"}) is None
    with pytest.raises(SpecError, match="needs the ranks of a campaign"):
        host().measure({"kind": "launch", "device": "cpu", "what": "sharded_layer"})


COMMAND = ("profile", "--device", "cpu", "--ranks", "1", "--what", "launch")
PASSES = ("profile", "--device", "cpu", "--ranks", "1", "--what", "memory")


def test_the_command_measures_into_the_cache_and_is_used(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "mine.json"
    assert main([*PASSES, "--output", str(output), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "ok"
    assert document["files"] == [str(next(cache.glob("cpu-*.json"))), str(output)]
    profile = read_profile(output)
    assert profile.device is not None
    assert apply_profile(profile.device, profile).gpu.training["hbm"] > 0
    assert profile.provenance.command.startswith("autoparallel ")
    model = ("--hidden-size", "256", "--num-layers", "2", "--num-heads", "4", "--intermediate-size", "512", "--vocab-size", "512")
    # gemm and attention were not measured, so a question about this machine cannot be answered yet, and says what is missing
    assert main([*model, "--gpu-type", profile.gpu, "--max-length", "128", "--batch-size", "4"]) == 2
    assert "no training constant" in capsys.readouterr().err


def test_an_import_says_what_it_read_and_where_it_is_used(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, output = tmp_path / "mine.csv", tmp_path / "h.json"
    source.write_text(
        "table,kind,bytes,ranks,time_us\n" + "".join(f"collectives,all_reduce,{2**k},4,{30 + 2**k / 2e5}\n" for k in (20, 24, 27))
    )
    assert main(["profile", "--import", str(source), "--gpu-type", "H100", "--output", str(output)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "all_reduce over 4: 3" in said
    assert "all_gather" not in said
    assert "every answer" not in said
    assert "that say --profile-data" in said


def test_a_dry_run_prints_the_command_and_measures_nothing(cache: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*COMMAND, "--dry-run"]) == 0
    first, command = capsys.readouterr().out.splitlines()
    assert first == "# 2 measurements; backend local"
    assert "-m autoparallel_profiler.worker" in command
    assert not list(cache.rglob("*.jsonl"))


def test_a_budget_stops_and_the_next_run_goes_on(cache: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*COMMAND, "--budget-minutes", "0.0001", "--json"]) in {0, 2}  # 2: the time was up before the first probe
    capsys.readouterr()
    assert main([*COMMAND, "--budget-minutes", "2"]) == 0
    assert "Unfinished" not in capsys.readouterr().out
    (journal,) = cache.rglob("*.jsonl")
    assert len(journal.read_text().splitlines()) == 3


def interrupted(cache: Path, number: signal.Signals) -> tuple[int, str, Path]:
    """Exit code and complaints of a campaign that gets a signal after its first result, and its journal."""
    command = [sys.executable, "-m", "autoparallel_core.cli.main", *PASSES]
    process = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(600):
        journals = list(cache.rglob("*.jsonl"))
        if journals and len(journals[0].read_text().splitlines()) > 1:
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err, journals[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_ends_the_ranks(cache: Path, number: signal.Signals):
    code, _, journal = interrupted(cache, number)
    assert code == 130
    kept = journal.read_text()
    time.sleep(1.5)
    assert journal.read_text() == kept


def test_an_interruption_keeps_what_was_measured(cache: Path):
    code, err, journal = interrupted(cache, signal.SIGINT)
    kept = journal.read_text().splitlines()
    if code == 130:  # it may have been done by then
        assert "what was measured so far is kept" in err
    assert len(kept) > 1
    command = [sys.executable, "-m", "autoparallel_core.cli.main", *PASSES]
    assert subprocess.run(command, env=dict(os.environ), capture_output=True, check=False).returncode == 0
    whole = journal.read_text().splitlines()
    assert whole[: len(kept)] == kept
    assert len(whole) == 15


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--what", "gem"], "--what gem: did you mean gemm"),
        (["--what", "collectives", "--ranks", "1"], "nothing of it can be measured with 1 ranks"),
        (["--gpu-type", "H100"], "this machine shows torch no accelerator"),
        (["--nodes", "2", "--backend", "local"], "on this machine only, not on 2 nodes"),
        (["--backend", "qsub"], "'qsub' is not one of auto, local, slurm, ray"),
        (["--model", "no/such"], "no/such"),
        (["--model-path", "/no/such"], "no such file"),
        (["--import", "x.csv"], "--import needs --gpu-type"),
    ],
)
def test_what_is_refused(cache: Path, capsys: pytest.CaptureFixture[str], argv: list[str], says: str):
    assert main(["profile", "--device", "cpu", *argv]) == 2
    assert says in capsys.readouterr().err


def test_no_accelerator_is_said(cache: Path, capsys: pytest.CaptureFixture[str]):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["profile", "--device", "cuda"]) == 2
    assert "torch sees no CUDA or ROCm device here" in capsys.readouterr().err


def test_ray_ranks_know_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for Ray: two nodes of two ranks, each told its rank, its place and where to meet."""
    started: list[dict[str, Any]] = []

    class Handle:
        def __init__(self, options: dict[str, Any]) -> None:
            self.address = SimpleNamespace(remote=lambda: "10.0.0.1")
            self.run = SimpleNamespace(remote=lambda request, env: started.append({"request": request, **env, **options}))

    ray: Any = ModuleType("ray")
    ray.init = lambda: None
    ray.get = lambda x: x
    ray.remote = lambda _: SimpleNamespace(options=lambda **o: SimpleNamespace(remote=lambda: Handle(o)))
    groups: list[tuple[Any, str]] = []
    ray.util = SimpleNamespace(
        placement_group=lambda bundles, strategy: groups.append((bundles, strategy)) or SimpleNamespace(ready=lambda: None),
        scheduling_strategies=SimpleNamespace(
            PlacementGroupSchedulingStrategy=lambda _, placement_group_bundle_index: placement_group_bundle_index
        ),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert ray_entry.main(["r.json", "--nodes=2", "--ranks-per-node=2", "--gpus-per-rank=1"]) == 0
    assert groups == [([{"GPU": 2}, {"GPU": 2}], "STRICT_SPREAD")]
    assert [(s["RANK"], s["LOCAL_RANK"], s["scheduling_strategy"]) for s in started] == [
        ("0", "0", 0), ("1", "0", 0), ("2", "0", 1), ("3", "0", 1),
    ]  # fmt: skip
    assert {(s["WORLD_SIZE"], s["MASTER_ADDR"], s["num_gpus"]) for s in started} == {("4", "10.0.0.1", 1)}
