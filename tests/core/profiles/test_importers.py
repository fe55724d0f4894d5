"""Other tools' measurements: what they print is read exactly, and what cannot be understood is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.apply import apply_profile
from autoparallel_core.profiles.importers import load
from autoparallel_core.testing.toys import toy_gpu

GPU = toy_gpu()
RANKS = "".join(
    f"#  Rank  {i} Group  0 Pid   41{i} on     node-{i // 8} device  {i % 8} [0x1b] T-1000 100GB\n" for i in range(16)
)
HEADER = """# nThread 1 nGpus 8 minBytes 1024 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
"""
COLUMNS = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def output(ranks: int = 8, factor: float = 1.75, redop: str = "sum", *, name: str = "", wrong: str = "0") -> str:
    rows = ""
    for size in (1024, 65536, 4194304, 268435456):
        us = 20.0 + factor * size / 300e9 * 1e6
        alg = size / us / 1e3
        rows += f"{size:>13}{size // 4:>14}     float{redop:>8}      -1{us:>9.2f}{alg:>8.2f}{alg * factor:>8.2f}{wrong:>7}"
        rows += f"{us + 1:>9.2f}{alg:>8.2f}{alg * factor:>8.2f}{wrong:>7}\n"
    title = f"# Collective test starting: {name}_perf\n" if name else ""
    listed = "".join(RANKS.splitlines(keepends=True)[:ranks])
    return title + HEADER + listed + COLUMNS + rows + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 123.4\n#\n"


def write(folder: Path, text: str, name: str = "run.txt") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_nccl_tests_output(tmp_path: Path):
    profile = load(write(tmp_path, "# nccl-tests version 2.17 nccl-library=22809\n" + output()), GPU)
    table = profile.tables["collectives"]
    assert table["kind"].tolist() == ["all_reduce"] * 4  # from the factor between the two bandwidths and the reduction
    assert table["bytes"].tolist() == [1024, 65536, 4194304, 268435456]
    assert set(table["ranks"].tolist()) == {8}
    assert set(table["nodes"].tolist()) == {1}
    assert table.seconds[-1] == pytest.approx(20e-6 + 1.75 * 268435456 / 300e9, rel=1e-3)
    assert profile.provenance.device == "T-1000 100GB"
    assert profile.gpu == "toy-gpu"
    (curve,) = apply_profile(GPU, profile).gpu.collectives["all_reduce"]
    assert curve.bus_bytes_per_s == pytest.approx(300e9, rel=0.02)


@pytest.mark.parametrize(
    ("text", "file", "kind", "nodes"),
    [
        (output(8, 7 / 8, "sum"), "x.txt", "reduce_scatter", 1),
        (output(8, 7 / 8, "none"), "all_gather_h100.txt", "all_gather", 1),
        (output(8, 7 / 8, "none"), "alltoall.log", "all_to_all", 1),
        (output(8, 7 / 8, "none", name="all_gather"), "x.txt", "all_gather", 1),
        ("$ mpirun -np 16 ./build/alltoall_perf -b 1K -e 256M -f 4\n" + output(16, 15 / 16, "none"), "x.txt", "all_to_all", 2),
        (output(2, 1.0, "sum"), "x.txt", "all_reduce", 1),
    ],
)
def test_which_collective_ran_is_told_by_what_is_there(tmp_path: Path, text: str, file: str, kind: str, nodes: int):
    table = load("nccl-tests:" + write(tmp_path, text, file), GPU).tables["collectives"]
    assert set(table["kind"].tolist()) == {kind}
    assert set(table["nodes"].tolist()) == {nodes}


def test_send_and_receive_is_point_to_point(tmp_path: Path):
    tables = load(write(tmp_path, output(2, 1.0, "none", name="sendrecv")), GPU).tables
    assert set(tables) == {"p2p"}
    assert tables["p2p"]["bytes"].tolist()[0] == 1024


def test_several_runs_in_one_file(tmp_path: Path):
    both = output(8, 1.75, "sum", name="all_reduce") + output(4, 3 / 4, "none", name="all_gather")
    table = load(write(tmp_path, both), GPU).tables["collectives"]
    pairs = set(zip(table["kind"].tolist(), table["ranks"].tolist(), strict=True))
    assert pairs == {("all_reduce", 8), ("all_gather", 4)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (output(8, 7 / 8, "none"), "says neither which collective ran nor does its file name"),
        (output(wrong="3"), "reports 3 wrong results; a broken collective"),
        (output(1), "lists 1 ranks"),
        (HEADER + RANKS + COLUMNS, "holds no row of results"),
        (output().replace("20.0", "  x ", 1), "is not a row of results"),
        ("size algbw busbw\n", "holds no row of results"),
        ("hello\n", "its format is not recognised; known: .json, nccl-tests, csv, torch-benchmark"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, says: str):
    with pytest.raises(SpecError) as e:
        load(write(tmp_path, text), GPU)
    assert says in str(e.value)


def test_a_collective_above_the_link_is_refused_after_import(tmp_path: Path):
    fast = output(factor=1.75).replace(f"{20 + 1.75 * 268435456 / 300e9 * 1e6:9.2f}", "   285.84", 1)
    assert fast != output()
    with pytest.raises(SpecError, match=r"collectives\[3\] \(all_reduce, .*above toy-gpu's link"):
        apply_profile(GPU, load(write(tmp_path, fast, "all_reduce.txt"), GPU))


# -- CSV ----------------------------------------------------------------------------------------------------------------


def test_csv_by_its_columns(tmp_path: Path):
    text = "# my bench\nm,n,k,dtype,latency_ms\n64,4096,4096,bf16,0.02\n128, 4096, 4096, bf16, 0.03\n"
    table = load(write(tmp_path, text, "gemm.csv"), GPU).tables["gemm"]
    assert table["m"].tolist() == [64, 128]
    assert table.seconds.tolist() == pytest.approx([2e-5, 3e-5])


def test_csv_of_several_tables(tmp_path: Path):
    text = "table,op,bytes,what,time_us\nmemory,copy,1048576,,5\nlaunch,,,kernel,7\n"
    tables = load(write(tmp_path, text, "all.csv"), GPU).tables
    assert tables["memory"].seconds.tolist() == pytest.approx([5e-6])
    assert tables["launch"]["what"].tolist() == ["kernel"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("m,n,k,dtype\n1,1,1,bf16\n", "has no column with the time; exactly one of seconds"),
        ("m,n,k,dtype,ms,us\n1,1,1,bf16,1,1\n", "has ms and us; exactly one"),
        ("m,n,dtype,ms\n1,1,bf16,1\n", "are those of no table"),
        ("m,n,k,dtype,comment,ms\n1,1,1,bf16,x,1\n", "are those of no table"),
        ("m,n,k,dtype,ms\n1,1,1,bf16,fast\n", "line 2: ms is 'fast', which is no number"),
        ("m,n,k,dtype,ms\n1,1,bf16,1\n", "line 2: has not as many values"),
        ("m,n,k,dtype,ms\n1,1,1,bf61,1\n", "gemm[0].dtype is 'bf61'; did you mean bf16"),
        ("m,n,k,dtype,ms\n", "has no rows"),
        ("table,m,ms\ngem,1,1\n", "line 2: table 'gem' is not one of gemm"),
    ],
)
def test_csv_that_says_something_else(tmp_path: Path, text: str, says: str):
    with pytest.raises(SpecError) as e:
        load(write(tmp_path, text, "x.csv"), GPU)
    assert says in str(e.value)


# -- torch.utils.benchmark ----------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_pickled_measurements_without_torch_and_without_running_anything(tmp_path: Path):
    common = pytest.importorskip("torch.utils.benchmark.utils.common")
    spec = common.TaskSpec(stmt="f()", setup="", label="gemm", sub_label="dtype=bf16 m=64 n=4096 k=4096", description="mine")
    made = common.Measurement(number_per_run=10, raw_times=[2e-4, 2.2e-4, 2.4e-4], task_spec=spec)
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps([made]))
    table = load(str(path), GPU).tables["gemm"]
    assert (table["m"].tolist(), table["dtype"].tolist()) == ([64], ["bf16"])
    assert table.seconds.tolist() == pytest.approx([2.2e-5])
    unnamed = common.TaskSpec(stmt="f()", setup="", label="matmul")
    path.write_bytes(pickle.dumps([common.Measurement(1, [1.0], unnamed)]))
    with pytest.raises(SpecError, match="its label 'matmul' names no table"):
        load(str(path), GPU)


class Evil:
    def __reduce__(self):
        import os

        return os.mkdir, ("/tmp/should-never-exist-autoparallel",)


def test_pickles_that_run_something_do_not(tmp_path: Path):
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(SpecError, match="is no pickled list of"):
        load(str(path), GPU)
    assert not Path("/tmp/should-never-exist-autoparallel").exists()


# -- operator tables ----------------------------------------------------------------------------------------------------


def tables_folder(root: Path, *, version: str = "0.24.0", fast: float = 1.0) -> Path:
    """A small copy of the layout, in the older text form, which needs no library."""
    folder = root / "data" / "toy_sxm" / "gemm" / "acme" / version
    folder.mkdir(parents=True)
    rows = ["framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency"]
    for m in (1, 64, 1024, 8192):
        for n, k in ((4096, 4096), (14336, 4096)):
            ms = (4e-6 + max(2 * m * n * k / 0.7e15, 2 * (n * k + m * (n + k)) / 3.4e12)) * 1e3 / fast
            rows += [
                f"acme,{version},T-1000,gemm,lib,bfloat16,{m},{n},{k},{ms}",
                f"acme,{version},T-1000,gemm,lib,int3,{m},{n},{k},1",
            ]
    (folder / "gemm_perf.txt").write_text("\n".join(rows))
    comm = root / "data" / "toy_sxm" / "comm" / "nccl" / "2.27"
    comm.mkdir(parents=True, exist_ok=True)
    lines = ["nccl_dtype,num_gpus,message_size,kernel_source,op_name,latency"]
    lines += [f"half,8,{2**p},NCCL,all_reduce,{(2e-5 + 1.75 * 2 * 2**p / 3e11) * 1e3}" for p in range(9, 28, 3)]
    (comm / "nccl_perf.txt").write_text("\n".join(lines))
    return root / "data" / "toy_sxm"


def test_a_folder_of_operator_tables(tmp_path: Path):
    profile = load(str(tables_folder(tmp_path)), GPU)
    assert {name: len(t) for name, t in profile.tables.items()} == {"gemm": 8, "collectives": 7}
    assert profile.tables["collectives"]["bytes"].tolist()[0] == 2 * 512  # elements of 16 bit
    assert profile.provenance.libraries == {"gemm_perf": "0.24.0", "nccl_perf": "2.27"}
    assert profile.provenance.device == "T-1000"
    gpu = apply_profile(GPU, profile).gpu
    assert gpu.gemm["bf16"].compute == pytest.approx(0.7, rel=0.05)


def test_the_newest_version_is_taken(tmp_path: Path):
    root = tables_folder(tmp_path, version="0.9.0")
    tables_folder(tmp_path, version="0.24.0")
    assert load(str(root), GPU).provenance.libraries["gemm_perf"] == "0.24.0"


def test_tables_that_beat_the_hardware_are_refused(tmp_path: Path):
    """One known preset ships matrix products 60% above the peak."""
    with pytest.raises(
        SpecError, match=r"rows of gemm are impossible on toy-gpu; the first: gemm\[\d\] .* above toy-gpu's dense bf16 peak"
    ):
        load(str(tables_folder(tmp_path, fast=2.3)), GPU)


def test_parquet_needs_its_library_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tables_folder(tmp_path)
    text = next(folder.rglob("gemm_perf.txt"))
    rows = [line.split(",") for line in text.read_text().splitlines()]
    text.unlink()
    parquet = text.with_suffix(".parquet")
    parquet.write_bytes(b"PAR1")
    from autoparallel_core.profiles.importers import operator_tables

    with monkeypatch.context() as m:
        m.setattr(operator_tables.importlib.util, "find_spec", lambda _: None)
        with pytest.raises(SpecError, match=r"reading gemm_perf\.parquet needs pyarrow, which is not installed"):
            load(str(folder), GPU)
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    columns = {c: [r[i] for r in rows[1:]] for i, c in enumerate(rows[0])}
    numbers = {c: [float(x) if c == "latency" else int(x) for x in columns[c]] for c in ("m", "n", "k", "latency")}
    pq.write_table(arrow.table({**columns, **numbers}), parquet)
    assert len(load(str(folder), GPU).tables["gemm"]) == 8


def test_the_installed_package_is_found_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "aiconfigurator_core"
    (package / "systems").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('its code is not run')")
    tables_folder(package / "systems")
    with pytest.raises(SpecError, match=r"the package is not installed \(pip install aiconfigurator-core\)"):
        load("aiconfigurator:toy_sxm/acme", GPU)
    monkeypatch.syspath_prepend(str(tmp_path))
    profile = load("aiconfigurator:toy_sxm/acme", GPU)
    assert len(profile.tables["gemm"]) == 8
    assert len(load("aiconfigurator:toy_sxm/acme/0.24.0", GPU).tables["gemm"]) == 8
    for spec, says in (
        ("toy_sxn/acme", "has no system 'toy_sxn'; did you mean toy_sxm"),
        ("toy_sxm/acne", "no framework 'acne' for toy_sxm; known: acme"),
        ("toy_sxm", "a framework must follow the system; known: acme"),
        ("toy_sxm/acme/9", "no version '9' of acme for toy_sxm; known: 0.24.0"),
    ):
        with pytest.raises(SpecError) as e:
            load(f"aiconfigurator:{spec}", GPU)
        assert says in str(e.value)


def test_missing_files_and_empty_folders(tmp_path: Path):
    for source in ("missing.csv", "missing.json", "csv:missing.txt"):
        with pytest.raises(SpecError, match="no such file"):
            load(source, GPU)
    with pytest.raises(SpecError, match="holds none of gemm_perf"):
        load(str(tmp_path), GPU)
