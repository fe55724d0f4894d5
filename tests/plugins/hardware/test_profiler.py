"""The profiler plugin without torch where it can be: what is measured, in which order, by which command; journals, devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.profiles.apply import apply_profile
from autoparallel_core.testing.toys import toy_dense_arch, toy_gpu, toy_moe_arch
from autoparallel_profiler import comms, launchers, sweep
from autoparallel_profiler.build import build_profile, cpu_device
from autoparallel_profiler.devices import Device, cpu_name, cpu_peak_flops, preset_of
from autoparallel_profiler.journal import Journal, append
from autoparallel_profiler.request import Request, key_of
from autoparallel_profiler.timing import BATCH_S, best, calls_per_batch, copies, time_calls, typical

H100 = Device("cuda", "NVIDIA H100 80GB HBM3", 8, 79.1 * 2**30, "575.1", {"torch": "2.9"}, "sm_90")
CPU = Device("cpu", "cpu-test-4-cores", 4, 16e9, "6.1", {"torch": "2.9"}, "x86_64")


# -- what is measured ---------------------------------------------------------------------------------------------------


def test_a_short_budget_knows_a_little_of_everything():
    probes = sweep.probes("cpu", ranks_per_node=2, nodes=1, dtypes=("bf16",))
    first = probes[: len(probes) // 4]
    assert {p["table"] for p in first} >= {"gemm", "attention", "memory", "collectives", "p2p", "launch"}
    assert len({p["m"] for p in first if p["table"] == "gemm"} | {p["n"] for p in first if p["table"] == "gemm"}) > 2
    assert len({key_of(p) for p in probes}) == len(probes)


def test_one_rank_has_no_collectives():
    probes = sweep.probes("cpu", ranks_per_node=1, nodes=1, dtypes=("bf16",))
    assert not {p["table"] for p in probes} & {"collectives", "p2p"}


def test_sharded_layers_need_somebody_to_share_with():
    def launches(ranks: int, nodes: int) -> set[str]:
        probes = sweep.probes("cuda", ranks_per_node=ranks, nodes=nodes, dtypes=("bf16",), tables=("launch",))
        return {p["what"] for p in probes}

    assert launches(1, 1) == {"kernel", "layer"}
    assert launches(1, 2) == launches(2, 1) == {"kernel", "layer", "sharded_layer"}


def test_groups_cover_halves_of_the_node_and_the_nodes():
    probes = sweep.probes("cuda", ranks_per_node=8, nodes=2, dtypes=("bf16",), tables=("collectives", "p2p"))
    shapes = {(p["ranks"], p["nodes"]) for p in probes if p["table"] == "collectives"}
    assert shapes == {(2, 1), (4, 1), (8, 1), (16, 2), (2, 2)}
    assert {p["nodes"] for p in probes if p["table"] == "p2p"} == {1, 2}


def test_the_models_own_matrices_are_measured_whole_and_split():
    probes = sweep.probes("cuda", ranks_per_node=1, nodes=1, dtypes=("bf16", "fp8"), tables=("gemm",), arch=toy_dense_arch(2))
    matrices = {(p["n"], p["k"]) for p in probes}
    assert {(6144, 4096), (32768, 4096)} & matrices
    assert any(k == 16384 for _, k in matrices)
    assert any((n, k) for n, k in matrices if k in (8192, 4096, 2048) and n == 4096)
    assert {p["dtype"] for p in probes} == {"bf16", "fp8"}
    assert len(matrices) <= 24


def test_the_models_heads_and_experts_are_measured():
    probes = sweep.probes("cpu", ranks_per_node=1, nodes=1, dtypes=("bf16",), arch=toy_moe_arch(2))
    attention = next(p for p in probes if p["table"] == "attention")
    assert (attention["heads"], attention["kv_heads"], attention["head_dim"]) == (32, 8, 128)
    expert = next(p for p in probes if p["table"] == "expert_gemm")
    assert (expert["experts"], expert["top_k"], expert["hidden"], expert["intermediate"]) == (32, 4, 4096, 2048)
    on_accelerators = sweep.probes("cuda", ranks_per_node=1, nodes=1, dtypes=("bf16",), arch=toy_moe_arch(2))
    assert not any(p["table"] == "expert_gemm" or p.get("phase") == "decode" for p in on_accelerators)


def test_groups_of_ranks():
    assert comms.members_of(8, 8, 2, 1) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert comms.members_of(8, 4, 8, 2) == [list(range(8))]
    assert comms.members_of(8, 4, 2, 2) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    for world, per_node, ranks, nodes in ((8, 4, 3, 1), (8, 4, 8, 1), (8, 4, 6, 4)):
        with pytest.raises(SpecError, match="no groups of"):
            comms.members_of(world, per_node, ranks, nodes)


# -- journal ------------------------------------------------------------------------------------------------------------


def test_a_journal_goes_on_where_it_stopped(tmp_path: Path):
    probes = sweep.probes("cpu", ranks_per_node=1, nodes=1, dtypes=("bf16",), tables=("gemm",))
    journal = Journal.read(tmp_path / "deep" / "j.jsonl").begun({"device": "x", "torch": "1"}, fresh=False)
    append(journal.path, {"probe": probes[0], "seconds": 1e-3, "spread": 0.1})
    append(journal.path, {"probe": probes[1], "failed": "no"})
    with journal.path.open("a") as f:
        f.write('{"probe": {"table": "ge')  # cut off by a crash
    again = Journal.read(journal.path)
    assert again.missing(probes) == probes[2:]
    assert again.begun({"device": "x", "torch": "1"}, fresh=False) is again
    reordered = dict(reversed(probes[0].items()))
    assert key_of(reordered) in again.results


@pytest.mark.parametrize(("head", "fresh"), [({"device": "x", "torch": "2"}, False), ({"device": "x", "torch": "1"}, True)])
def test_other_software_or_a_fresh_start_forgets(tmp_path: Path, head, fresh):
    journal = Journal.read(tmp_path / "j.jsonl").begun({"device": "x", "torch": "1"}, fresh=False)
    append(journal.path, {"probe": {"table": "launch", "what": "kernel"}, "seconds": 1e-6, "spread": 0.0})
    assert Journal.read(journal.path).begun(head, fresh=fresh).results == {}
    assert len(journal.path.read_text().splitlines()) == 1


def test_requests_survive_their_file(tmp_path: Path):
    request = Request("cpu", ({"table": "launch", "what": "kernel"},), "j.jsonl", 2, 1, 1, 60.0, 0.1)
    request.write(tmp_path / "r.json")
    assert Request.read(tmp_path / "r.json") == request
    assert request.world == 2


# -- launchers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Stand-ins on the PATH that write down how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)

    def add(*names: str) -> Path:
        for name in names:
            program = folder / name
            program.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name}" "$@" >> {tmp_path}/calls.txt\n')
            program.chmod(0o755)
        return tmp_path / "calls.txt"

    return add


def launch(backend: str, request: Path, **changes: Any) -> launchers.Launch:
    defaults: dict[str, Any] = {"nodes": 1, "ranks_per_node": 8, "threads": 1, "accelerator": True}
    return launchers.launch_of(backend, request, **{**defaults, **changes})


def test_local_ranks_are_started_by_torchrun(tmp_path: Path):
    command = launch("local", tmp_path / "r.json").command
    assert command[1:4] == ("-m", "torch.distributed.run", "--standalone")
    assert command[-4:] == ("--nproc-per-node=8", "-m", "autoparallel_profiler.worker", str(tmp_path / "r.json"))
    alone = launch("local", tmp_path / "r.json", ranks_per_node=1, accelerator=False, threads=4)
    assert alone.command[1:3] == ("-m", "autoparallel_profiler.worker")
    assert alone.shown().startswith("OMP_NUM_THREADS=4 ")
    with pytest.raises(SpecError, match="on this machine only, not on 2 nodes"):
        launch("local", tmp_path / "r.json", nodes=2)


def test_inside_an_allocation_srun_starts_one_task_per_node(programs, tmp_path: Path):
    programs("srun")
    inside = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2"}
    found = launch("slurm", tmp_path / "r.json", nodes=2, environment=inside, extra=("--qos=high",))
    assert found.command[:6] == ("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--qos=high")
    script = found.command[-1]
    assert 'scontrol show hostnames "$SLURM_JOB_NODELIST"' in script
    assert "--nnodes=2" in script
    assert "--rdzv-endpoint=$head:" in script
    assert "--nproc-per-node=8" in script
    with pytest.raises(SpecError, match="--nodes 4: this allocation has 2"):
        launch("slurm", tmp_path / "r.json", nodes=4, environment=inside)


def test_outside_sbatch_waits_for_a_script(programs, tmp_path: Path):
    calls = programs("sbatch")
    found = launch("slurm", tmp_path / "r.json", nodes=2, environment={}, extra=("--partition=gpu",))
    assert found.command == ("sbatch", "--wait", str(tmp_path / "r.sbatch"))
    assert "#SBATCH --nodes=2\n" in found.script_text
    assert "#SBATCH --partition=gpu\n" in found.script_text
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --gpus-per-node=8 bash -c" in found.script_text
    assert found.script_text in found.shown()
    seen: list[int] = []
    assert launchers.execute(found, tmp_path / "log", lambda: seen.append(1)) == 0
    assert calls.read_text().split() == ["sbatch", "--wait", str(tmp_path / "r.sbatch")]
    assert (tmp_path / "r.sbatch").read_text() == found.script_text
    assert seen


def test_one_node_of_slurm_needs_no_meeting_point(programs, tmp_path: Path):
    programs("srun")
    script = launch("slurm", tmp_path / "r.json", environment={"SLURM_JOB_ID": "1"}).command[-1]
    assert "--standalone" in script
    assert "scontrol" not in script


def test_ray_gets_a_job(programs, tmp_path: Path):
    calls = programs("ray")
    found = launch("ray", tmp_path / "r.json", nodes=2, extra=("--address=http://head:8265",))
    assert found.command[:5] == ("ray", "job", "submit", "--address=http://head:8265", "--")
    assert found.command[5:] == (
        "python", "-m", "autoparallel_profiler.ray_entry", str(tmp_path / "r.json"), "--nodes=2", "--ranks-per-node=8",
        "--gpus-per-rank=1",
    )  # fmt: skip
    assert launchers.execute(found, tmp_path / "log", lambda: None) == 0
    assert calls.read_text().split()[:3] == ["ray", "job", "submit"]


def test_missing_programs_are_named(programs, tmp_path: Path):
    for backend, program in (("slurm", "sbatch"), ("ray", "ray")):
        with pytest.raises(SpecError, match=f"--backend {backend}: .*{program}.* is not on the PATH"):
            launch(backend, tmp_path / "r.json", environment={})


def test_what_starts_the_ranks_is_detected(programs):
    assert launchers.detect(1, {}) == "local"
    assert launchers.detect(1, {"SLURM_JOB_ID": "1"}) == "slurm"
    assert launchers.detect(1, {"RAY_ADDRESS": "x"}) == "ray"
    with pytest.raises(SpecError, match="--nodes 2: neither a Slurm allocation nor sbatch nor a Ray cluster"):
        launchers.detect(2, {})
    programs("ray")
    assert launchers.detect(2, {}) == "ray"
    programs("sbatch")
    assert launchers.detect(2, {}) == "slurm"


def test_ranks_that_fail_give_their_exit_code(tmp_path: Path):
    bad = launchers.Launch("local", ("/bin/sh", "-c", "echo RuntimeError: no; exit 3"))
    assert launchers.execute(bad, tmp_path / "log", lambda: None) == 3
    assert "RuntimeError: no" in (tmp_path / "log").read_text()


def test_an_interrupt_ends_the_ranks(tmp_path: Path):
    def watch() -> None:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    slow = launchers.Launch("local", ("/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"))
    with pytest.raises(KeyboardInterrupt):
        launchers.execute(slow, tmp_path / "log", watch)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


# -- devices ------------------------------------------------------------------------------------------------------------


def test_a_gpu_is_recognised_by_name_and_memory():
    gpus = list(host().gpus().values())
    assert preset_of(H100, gpus, None).name == "H100-SXM-80GB"
    assert preset_of(CPU, gpus, None) is None
    chosen = host().gpu("A100")
    assert preset_of(evolve(H100, name="mystery"), gpus, chosen) is chosen
    with pytest.raises(SpecError, match="not the same GPU"):
        preset_of(H100, gpus, host().gpu("H200"))
    with pytest.raises(SpecError, match="no preset is certainly this mystery; say which with --gpu-type"):
        preset_of(evolve(H100, name="mystery"), gpus, None)


def test_this_machines_processor_has_a_name_and_a_bound():
    assert cpu_name().startswith("cpu-")
    assert cpu_name().endswith("-cores")
    (one, how), (four, _) = cpu_peak_flops(1), cpu_peak_flops(4)
    assert 1e10 < one["fp32"] <= one["bf16"] < 1e13
    assert four["bf16"] == pytest.approx(4 * one["bf16"])
    assert how.startswith("upper bound: 1 core at")


# -- profiles -----------------------------------------------------------------------------------------------------------


def result(table: str, seconds: float, **shape: Any) -> dict[str, Any]:
    return {"probe": {"table": table, **shape}, "seconds": seconds, "spread": 0.1}


GEMMS = [
    result("gemm", 2 * m * 1024 * 1024 / 5e10 + 1e-5, dtype="bf16", m=m, n=1024, k=1024) for m in (16, 64, 256, 1024)
]  # fmt: skip
PASSES = [result("memory", size / 1e10, op="copy", bytes=size) for size in (2**22, 2**24, 2**26)]
RINGS = [
    result("collectives", 1e-4 + size / 2e9, kind="all_reduce", bytes=size, ranks=2, nodes=1) for size in (2**12, 2**16, 2**20)
]


def profile_of(results: list[dict[str, Any]], *, complete: bool = True):
    return build_profile(results, CPU, None, ranks=2, threads=2, command="autoparallel profile", complete=complete)


def test_a_cpu_describes_itself_and_is_plausible():
    found = profile_of([*GEMMS, *PASSES, *RINGS], complete=False)
    assert found.device is not None
    assert (found.gpu, found.device.vendor, found.complete) == (CPU.name, "cpu", False)
    assert found.device.memory_bytes == 8e9
    assert found.device.hbm_bytes_per_s == pytest.approx(1e10)
    assert found.device.scale_up_bytes_per_s == pytest.approx(2**20 / (1e-4 + 2**20 / 2e9), rel=1e-3)
    applied = apply_profile(found.device, found)
    assert applied.gpu.gemm["bf16"].origin == "measured"
    assert applied.gpu.training["hbm"] == pytest.approx(1.0)
    assert found.provenance.libraries["torch"] == "2.9"


def test_failures_and_noise_are_left_out_and_said():
    slow = result("gemm", 1.0, dtype="bf16", m=128, n=1024, k=1024)  # slower than four times as many rows
    failed = {"probe": {"table": "gemm", "dtype": "fp8", "m": 1, "n": 1, "k": 1}, "failed": "no fp8 here"}
    found = profile_of([*GEMMS, slow, failed, *PASSES])
    assert len(found.tables["gemm"]) == 4
    assert found.provenance.notes == (
        "gemm: 1 of 5 points left out: larger shapes took less time",
        "1 probes could not run; the first: no fp8 here",
    )


def test_nothing_measured_is_an_error():
    with pytest.raises(SpecError, match="nothing could be measured: out of memory"):
        profile_of([{"probe": {"table": "gemm"}, "failed": "out of memory"}])


def test_a_preset_takes_the_measurements_of_its_gpu():
    gpu = toy_gpu()
    found = build_profile(
        [result("gemm", 2 * 4096**3 / 0.6e15, dtype="bf16", m=4096, n=4096, k=4096)],
        H100, gpu, ranks=8, threads=1, command="", complete=True,
    )  # fmt: skip
    assert (found.gpu, found.device) == ("toy-gpu", None)


def test_links_and_memory_that_were_not_measured_are_assumed():
    device = cpu_device(CPU, {}, 1, 4)
    assert device.sources["hbm_bytes_per_s"].startswith("assumed")
    assert device.sources["scale_up_bytes_per_s"].startswith("assumed")


def test_times_of_calls():
    assert typical([4.0, 1.0, 2.0, 3.0], 4).seconds == 2.5
    assert best([4.0, 1.0, 2.0, 3.0], 4).seconds == 1.0  # others only ever add time
    assert best([4.0, 1.0, 2.0, 3.0], 4).spread == 1.5
    assert best([2.0], 1) == typical([2.0], 1)
    assert copies("cpu", 1e9) == 1
    assert copies("cpu", 96e6 / 7.5) == 8
    assert copies("cuda", 1.0) == 64


def test_batches_on_a_processor_outlast_time_slices():
    assert calls_per_batch(1e-3, 0.0) == round(BATCH_S / 1e-3)
    assert calls_per_batch(1e-3, 1.0) == 200
    assert calls_per_batch(10.0, 0.1) == 1


def test_ranks_of_a_processor_share_what_they_measure():
    """Every number of this rank goes through ``together``; the other rank takes three times as long."""
    own: list[float] = []

    def together(seconds: float) -> float:
        own.append(seconds)
        return (seconds + 3.0 * seconds) / 2.0

    timed = time_calls(lambda _: sum(range(20_000)), "cpu", budget_s=0.0, together=together)
    batches = [s for s in own if s][1:]  # the first only says how many calls make a batch
    assert len(batches) == 5
    assert timed.seconds == pytest.approx(2.0 * min(batches) / (timed.calls / 5))


def test_journal_lines_are_json(tmp_path: Path):
    append(tmp_path / "j", {"probe": {"table": "launch"}, "seconds": 1e-6})
    assert json.loads((tmp_path / "j").read_text())["seconds"] == 1e-6
