from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.plausible import check, implausible, least_seconds
from autoparallel_core.profiles.tables import Table, table_of
from autoparallel_core.testing.toys import toy_gpu

GPU = toy_gpu()  # 1e15 bf16, 4e12 B/s, 450e9 B/s in a domain of 8, 50e9 B/s NIC


def table(name: str, rows: list[dict[str, Any]]) -> Table:
    return table_of(name, rows, "test")


def complaint(name: str, rows: list[dict[str, Any]]) -> str:
    with pytest.raises(SpecError) as e:
        check({name: table(name, rows)}, GPU, "profile x.json")
    return str(e.value)


def gemm(m: int, n: int, k: int, seconds: float, dtype: str = "bf16") -> dict[str, Any]:
    return {"dtype": dtype, "m": m, "n": n, "k": k, "seconds": seconds}


def test_a_gemm_above_the_dense_peak_is_refused_naming_it():
    size = 8192
    peak_s = 2 * size**3 / 1e15
    check({"gemm": table("gemm", [gemm(size, size, size, peak_s * 1.001)])}, GPU, "x")
    said = complaint("gemm", [gemm(64, 64, 64, 1e-4), gemm(size, size, size, peak_s / 1.6)])
    assert "gemm[1] (bf16, m 8192, n 8192, k 8192) reaches 1600 TFLOP/s, 60% above toy-gpu's dense bf16 peak of 1000" in said


def test_a_dtype_without_a_peak_is_refused():
    assert "toy-gpu states no fp4 peak (it has bf16, fp16, fp32, fp8)" in complaint("gemm", [gemm(64, 64, 64, 1.0, "fp4")])


def test_a_copy_above_the_memory_bandwidth_is_refused():
    said = complaint("memory", [{"op": "copy", "bytes": 2**30, "seconds": 2**30 / 5e12}])
    assert "memory[0] (copy, bytes 1.07374e+09) moves 5000 GB/s, 25% above toy-gpu's memory bandwidth of 4000" in said


@pytest.mark.parametrize(
    ("kind", "ranks", "nodes", "most"),
    [
        ("all_gather", 8, 1, 450e9 * 8 / 7),  # 7/8 of the buffer crosses the link
        ("all_reduce", 8, 1, 450e9),  # each byte at least once
        ("all_to_all", 4, 1, 450e9 * 4 / 3),
        ("all_reduce", 16, 2, 8 * 50e9),  # all NICs of a node
        ("all_to_all", 16, 2, 2 * 50e9 * 16 / 15),  # half of a rank's bytes leave through its own NIC
    ],
)
def test_a_collective_above_the_link_is_refused(kind, ranks, nodes, most):
    row = {"kind": kind, "bytes": 2**30, "ranks": ranks, "nodes": nodes}
    assert not list(implausible(table("collectives", [{**row, "seconds": 2**30 / most * 1.001}]), GPU))
    found = list(implausible(table("collectives", [{**row, "seconds": 2**30 / most * 0.98}]), GPU))
    assert len(found) == 1
    assert "link" in found[0].sentence


def test_point_to_point_is_bound_by_its_link():
    assert not list(implausible(table("p2p", [{"bytes": 2**30, "seconds": 2**30 / 440e9}]), GPU))
    assert len(list(implausible(table("p2p", [{"bytes": 2**30, "seconds": 2**30 / 440e9, "nodes": 2}]), GPU))) == 1


def test_a_group_of_one_is_no_collective():
    row = {"kind": "all_reduce", "bytes": 8, "ranks": 1, "seconds": 1.0}
    assert "at least 2 ranks" in complaint("collectives", [row])


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("gemm", [gemm(1024, 4096, 4096, 1e-4), gemm(2048, 4096, 4096, 7e-5)]),
        ("gemm", [gemm(4096, 4096, 1024, 1e-4), gemm(4096, 4096, 2048, 7.5e-5)]),
        ("memory", [{"op": "copy", "bytes": 2**28, "seconds": 3e-4}, {"op": "copy", "bytes": 2**29, "seconds": 2e-4}]),
        (
            "collectives",
            [{"kind": "all_reduce", "bytes": 2**k, "ranks": 8, "seconds": s} for k, s in ((20, 2e-5), (21, 8e-6))],
        ),
        (
            "attention",
            [
                {"phase": "forward", "dtype": "bf16", "batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": s,
                 "kv_len": s, "seconds": t}
                for s, t in ((4096, 2e-3), (8192, 9e-4))
            ],
        ),
    ],
)  # fmt: skip
def test_time_that_falls_with_size_is_refused_naming_both(name, rows):
    said = complaint(name, rows)
    assert f"{name}[1]" in said
    assert f"less than the smaller {name}[0]" in said


def test_noise_and_other_shapes_are_no_contradiction():
    rows = [gemm(1024, 4096, 4096, 1.0e-4), gemm(2048, 4096, 4096, 9.0e-5), gemm(512, 8192, 4096, 5e-4)]
    check({"gemm": table("gemm", rows)}, GPU, "x")
    latency = [{"kind": "all_reduce", "bytes": 8 * 4**i, "ranks": 8, "seconds": s} for i, s in enumerate((3e-5, 2e-5, 2.1e-5))]
    check({"collectives": table("collectives", latency)}, GPU, "x")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 4), st.floats(1.0, 8.0)), min_size=1, max_size=12, unique_by=lambda x: x[:2]
    )
)
def test_falling_times_are_exactly_those_of_a_brute_force(points):
    """Against the slowest smaller shape of the same group, with the looser limit (nothing here is near a peak)."""
    rows = [gemm(64 * m, 64 * n, 64, s * 1e-3) for m, n, s in points]
    found = {f.row for f in implausible(table("gemm", rows), GPU)}
    expected = set()
    for i, (m, n, s) in enumerate(points):
        for m2, n2, s2 in points:
            same_row, same_column = n == n2 and m2 < m, m == m2 and n2 < n
            if (same_row or same_column) and s < 0.5 * s2:
                expected.add(i)
    assert found == expected


def test_least_seconds_is_the_roofline():
    t = table("gemm", [gemm(8192, 8192, 8192, 1.0), gemm(1, 8192, 8192, 1.0)])
    assert np.allclose(least_seconds(t, GPU), [2 * 8192**3 / 1e15, (8192 * 8192 * 2 + 2 * 2 * 8192) / 4e12])
