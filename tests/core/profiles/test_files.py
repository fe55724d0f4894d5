from __future__ import annotations

import json
from typing import Any

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.apply import apply_profile
from autoparallel_core.profiles.files import cache_directory, cache_file, cached_profile, read_profile, write_profile
from autoparallel_core.testing.toys import toy_gpu

GOOD: dict[str, Any] = {
    "schema_version": 1,
    "gpu": "toy-gpu",
    "source": "bench of 3 May, driver 999",
    "gemm": {"bf16": {"compute": 0.6, "memory": 0.9, "fixed_s": 4e-6}},
    "attention": {"fused": {"compute": 0.5, "memory": 0.7}},
    "collectives": {"all_reduce": [{"ranks": 8, "bus_bytes_per_s": 4e11, "latency_s": 1e-5}]},
}


@pytest.fixture
def profile(tmp_path):
    def write(**changes: Any):
        path = tmp_path / "p.json"
        path.write_text(json.dumps({k: v for k, v in {**GOOD, **changes}.items() if v is not None}))
        return path

    return write


def test_measured_entries_replace_the_presets_and_carry_their_source(profile):
    gpu = apply_profile(toy_gpu(), read_profile(profile())).gpu
    assert (gpu.gemm["bf16"].compute, gpu.gemm["bf16"].memory, gpu.gemm["bf16"].fixed_s) == (0.6, 0.9, 4e-6)
    assert (gpu.gemm["bf16"].origin, gpu.gemm["bf16"].source) == ("measured", GOOD["source"])
    assert gpu.gemm["fp8"] == toy_gpu().gemm["fp8"]
    assert gpu.attention["fused"].compute == 0.5
    assert gpu.collectives["all_reduce"][0].bus_bytes_per_s == 4e11


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"gemm": {"bf16": {"compute": 1.6, "memory": 0.9}}},
            r"gemm\.bf16\.compute is 1\.6; it must be a number above 0 up to 1",
        ),
        ({"gemm": {"bf16": {"compute": 0, "memory": 0.9}}}, r"gemm\.bf16\.compute is 0"),
        ({"gemm": {"bf16": {"compute": 0.5}}}, r"gemm\.bf16\.memory is None"),
        ({"gemm": {"bf16": 0.5}}, r"gemm\.bf16\.compute is None"),
        ({"gemm": [1]}, r"gemm\[0\] must be an object, not 1"),
        ({"collectives": {"all_reduce": [{"ranks": 1, "bus_bytes_per_s": 1e9}]}}, "at least 2 ranks"),
        ({"collectives": {"all_reduce": [{"ranks": 8, "bus_bytes_per_s": -1}]}}, "bus_bytes_per_s is -1"),
        ({"collectives": {"all_reduce": 3}}, r"collectives\.all_reduce must be a list"),
        ({"gem": {}}, "unknown key 'gem'; did you mean gemm"),
        ({"schema_version": 9}, "schema_version is 9"),
        ({"source": None}, "'source' must be a text"),
        ({"gemm": None, "attention": None, "collectives": None}, "holds no measurement"),
    ],
)
def test_implausible_files_are_refused_naming_the_entry(profile, changes, says):
    with pytest.raises(SpecError, match=says):
        read_profile(profile(**changes))


def test_another_gpus_profile_and_impossible_links_are_refused(profile):
    with pytest.raises(SpecError, match="measured on other and cannot speak for toy-gpu"):
        apply_profile(toy_gpu(), read_profile(profile(gpu="other")))
    fast = {"all_reduce": [{"ranks": 8, "bus_bytes_per_s": 9.1e11}]}
    with pytest.raises(SpecError, match="more than both directions"):
        apply_profile(toy_gpu(), read_profile(profile(collectives=fast)))


@pytest.mark.parametrize(("text", "says"), [("{", "is not valid JSON"), ("[]", "must be a JSON object, not list")])
def test_files_that_are_no_profile(tmp_path, text, says):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=says):
        read_profile(path)
    with pytest.raises(SpecError, match="no such file"):
        read_profile(tmp_path / "missing.json")


ROWS = [{"dtype": "bf16", "m": 64 * 2**i, "n": 4096, "k": 4096, "seconds": 2e-5 * 2**i} for i in range(4)]
COLUMNS = {"dtype": "bf16", "m": [64, 128, 256, 512], "n": 4096, "k": 4096, "seconds": [2e-5, 4e-5, 8e-5, 16e-5]}


def test_rows_and_columns_say_the_same(profile):
    by_row, by_column = (read_profile(profile(gemm=raw)).tables["gemm"] for raw in (ROWS, COLUMNS))
    assert len(by_row) == len(by_column) == 4
    for name, values in by_row.columns.items():
        assert values.tolist() == by_column[name].tolist()


@pytest.mark.parametrize(
    ("gemm", "says"),
    [
        ([*ROWS, {**ROWS[0], "m": 0}], r"gemm\[4\]\.m is 0; it must be a whole number above 0"),
        ([*ROWS, {**ROWS[0], "m": 1.5}], r"gemm\[4\]\.m is 1\.5; it must be a whole number"),
        ([*ROWS, {**ROWS[0], "seconds": -1e-5}], r"gemm\[4\]\.seconds is -1e-05; it must be above 0"),
        ([*ROWS, {**ROWS[0], "seconds": float("nan")}], r"gemm\[4\]\.seconds is nan; it must be a number"),
        ([*ROWS, {**ROWS[0], "seconds": "fast"}], r"gemm\[4\]\.seconds is 'fast'; it must be a number"),
        ([*ROWS, {**ROWS[0], "dtype": "bf61"}], r"gemm\[4\]\.dtype is 'bf61'; did you mean bf16"),
        ([{k: v for k, v in ROWS[0].items() if k != "k"}], "gemm lacks the column 'k'"),
        ([ROWS[0], {k: v for k, v in ROWS[0].items() if k != "k"}], r"gemm\[1\] lacks 'k'"),
        ([{**ROWS[0], "K": 1}], "gemm has the unknown column 'K'; did you mean k"),
        ({**COLUMNS, "m": [64, 128]}, r"gemm\.m has 2 entries and others have 4"),
    ],
)
def test_wrong_entries_are_named(profile, gemm, says):
    with pytest.raises(SpecError, match=says):
        read_profile(profile(gemm=gemm))


def test_what_is_written_reads_back(profile, tmp_path):
    provenance = {"source": "bench", "date": "2026-05-03", "driver": "575.1", "libraries": {"torch": "2.9"}}
    first = read_profile(profile(gemm=ROWS, attention=None, source=None, provenance=provenance, complete=False, collectives=None))
    assert first.provenance.sentence == "bench, driver 575.1, torch 2.9, 2026-05-03"
    write_profile(first, tmp_path / "deep" / "copy.json")
    again = read_profile(tmp_path / "deep" / "copy.json")
    assert (again.gpu, again.provenance, again.complete, again.rows) == (first.gpu, first.provenance, False, 4)
    assert again.tables["gemm"].seconds.tolist() == first.tables["gemm"].seconds.tolist()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["copy.json"]


def test_a_device_no_plugin_knows_is_described_by_its_file(profile, tmp_path):
    device = {
        "vendor": "acme", "memory_bytes": 8e9, "marketing_memory_bytes": 8e9, "hbm_bytes_per_s": 2e10,
        "peak_flops": {"bf16": 1e11}, "scale_up_bytes_per_s": 1e9, "scale_up_domain": 2, "nic_bytes_per_s": 1e9,
        "gpus_per_node": 2, "host_memory_bytes_per_node": 8e9,
    }  # fmt: skip
    found = read_profile(profile(device=device))
    assert found.device is not None
    assert (found.device.name, found.device.peak("bf16")) == ("toy-gpu", 1e11)
    write_profile(read_profile(profile(device=device, gemm=ROWS, attention=None, collectives=None)), tmp_path / "again.json")
    assert read_profile(tmp_path / "again.json").device == found.device
    with pytest.raises(SpecError, match=r"device: .*memory_bytes"):
        read_profile(profile(device={**device, "memory_bytes": "much"}))
    with pytest.raises(SpecError, match="device: "):
        read_profile(profile(device={**device, "hmb_bytes_per_s": 1.0}))


def test_the_cache_follows_xdg_and_finds_aliases(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "autoparallel" / "profiles"
    assert cache_file("NVIDIA H100 80GB").name == "nvidia-h100-80gb.json"
    gpu = toy_gpu(aliases=("Toy One",))
    assert cached_profile(gpu) is None
    write_profile(read_profile(profile(gemm=ROWS, attention=None, collectives=None)), cache_file("toy one"))
    assert cached_profile(gpu).rows == 4
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/ignored")
    assert cache_directory().is_absolute()
