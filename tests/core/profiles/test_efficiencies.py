from __future__ import annotations

import json
from typing import Any

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.efficiencies import apply_profile, read_profile
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
    gpu = apply_profile(toy_gpu(), read_profile(profile()))
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
        ({"gemm": [1]}, "'gemm' must be an object"),
        ({"collectives": {"all_reduce": [{"ranks": 1, "bus_bytes_per_s": 1e9}]}}, "at least 2 ranks"),
        ({"collectives": {"all_reduce": [{"ranks": 8, "bus_bytes_per_s": -1}]}}, "bus_bytes_per_s is -1"),
        ({"collectives": {"all_reduce": 3}}, r"collectives\.all_reduce must be a list"),
        ({"gem": {}}, "unknown key 'gem'"),
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


@pytest.mark.parametrize(("text", "says"), [("{", "is not JSON"), ("[]", "must be a JSON object, not list")])
def test_files_that_are_no_profile(tmp_path, text, says):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=says):
        read_profile(path)
    with pytest.raises(SpecError, match="no such file"):
        read_profile(tmp_path / "missing.json")
