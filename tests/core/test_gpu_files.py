"""Data files of GPUs: strict reading, sources, and what a GPU without tables inherits."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.gpu_files import read_gpus

BASE = """
name = "{name}"
vendor = "acme"
memory_bytes = 60e9
marketing_memory_bytes = 64e9
hbm_bytes_per_s = 2e12
scale_up_bytes_per_s = {link}
scale_up_domain = {domain}
nic_bytes_per_s = 25e9
gpus_per_node = 8
host_memory_bytes_per_node = 1e12
{top}
[peak_flops]
{peaks}
[sources]
memory_bytes = "page"
marketing_memory_bytes = "page"
hbm_bytes_per_s = "page"
scale_up_bytes_per_s = "page"
scale_up_domain = "page"
nic_bytes_per_s = "page"
gpus_per_node = "page"
host_memory_bytes_per_node = "page"
peak_flops = "page"
{bottom}
"""
MEASURED = """
[gemm.bf16]
compute = 0.8
memory = 0.7
fixed_s = 4e-6
origin = "measured"
source = "table"
[gemm.fp8_block]
compute = 0.6
memory = 0.7
source = "table"
[gemm.int4_wo]
compute = 0.5
memory = 0.5
source = "table"
[attention.decode]
compute = 0.2
memory = 0.8
source = "table"
[[collectives.all_reduce]]
ranks = 8
bus_bytes_per_s = 100e9
latency_s = 10e-6
origin = "measured"
source = "table"
knots = [[1_000_000, 30e-6]]
[[collectives.all_reduce]]
ranks = 16
bus_bytes_per_s = 20e9
latency_s = 30e-6
source = "table"
[serving]
scan_s = 7e-6
[sources]
"serving.scan_s" = "table"
"""


def write(
    folder: Path,
    name: str,
    *,
    measured: str | None = None,
    link="200e9",
    domain=8,
    peaks="bf16 = 400e12\nfp16 = 400e12\nfp8 = 800e12",
    top="",
    bottom="",
) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(BASE.format(name=name, link=link, domain=domain, peaks=peaks, top=top, bottom=bottom))
    if measured is not None:
        (folder / "measured").mkdir(exist_ok=True)
        (folder / "measured" / f"{name}.toml").write_text(measured)


def read(folder: Path):
    return {g.name: g for g in read_gpus(folder)}


def test_figures_and_tables_of_a_gpu(tmp_path):
    write(tmp_path, "a", measured=MEASURED, top='aliases = ["A"]\narchitecture = "One"')
    a = read(tmp_path)["a"]
    assert (a.memory_bytes, a.architecture, a.aliases) == (60e9, "One", ("A",))
    assert a.gemm["bf16"].fixed_s == 4e-6
    assert a.gemm["fp16"].compute == 0.8
    assert "as bf16" in a.gemm["fp16"].source
    assert a.collectives["all_reduce"][0].knots == ((1e6, 30e-6),)
    assert a.serving == {"scan_s": 7e-6}


def test_a_data_file_overrules_its_measured_one(tmp_path):
    own = '[gemm.bf16]\ncompute = 0.9\nmemory = 0.9\nsource = "hand"'
    write(tmp_path, "a", measured=MEASURED, bottom=own)
    assert read(tmp_path)["a"].gemm["bf16"].source == "hand"


def test_what_resembles_inherits_as_assumed_and_on_its_own_links(tmp_path):
    write(tmp_path, "a", measured=MEASURED)
    write(tmp_path, "b", link="100e9", top='kernels_like = "a"', peaks="fp16 = 100e12")
    write(tmp_path, "c", top='kernels_like = "b"', bottom='[attention.decode]\ncompute = 0.3\nmemory = 0.3\nsource = "own"')
    gpus = read(tmp_path)
    b = gpus["b"]
    assert sorted(b.gemm) == ["fp16", "int4_wo"]  # neither bf16 nor fp8 on these tensor cores
    assert b.gemm["fp16"].origin == "assumed"
    assert b.gemm["fp16"].source.startswith("assumed as a (")
    inside, across = b.collectives["all_reduce"]
    assert (inside.bus_bytes_per_s, inside.origin) == (50e9, "assumed")
    assert across.bus_bytes_per_s == 20e9  # the same NIC
    # 1 MB at half the speed: 30 µs + 1.75 MB·(1/50 − 1/100 GB/s)
    assert inside.knots[0][1] == pytest.approx(47.5e-6)
    assert b.serving == {"scan_s": 7e-6}
    assert b.sources["serving.scan_s"] == "assumed as a (table)"
    c = gpus["c"]
    assert c.attention["decode"].source == "own"
    assert "assumed as b (assumed as a" in c.gemm["fp16"].source


def test_a_fabric_curve_says_nothing_about_groups_that_leave_the_fabric(tmp_path):
    write(tmp_path, "a", measured=MEASURED)
    write(
        tmp_path,
        "pair",
        domain=2,
        top='kernels_like = "a"\nhost_link_bytes_per_s = 32e9',
        bottom='host_link_bytes_per_s = "page"',
    )
    write(tmp_path, "rack", domain=72, top='kernels_like = "a"')
    gpus = read(tmp_path)
    assert [c.ranks for c in gpus["pair"].collectives["all_reduce"]] == [16]
    assert [c.ranks for c in gpus["rack"].collectives["all_reduce"]] == [8]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"top": 'hbm = "fast"'}, "a.toml: .*hbm"),
        ({"link": '"200 GB/s"'}, "scale_up_bytes_per_s"),
        ({"domain": "8.5"}, "scale_up_domain"),
        ({"peaks": 'bf16 = "400"'}, "bf16"),
        ({"bottom": "[training]\ngemm_bf16 = 0.7"}, "no source for training.gemm_bf16"),
        ({"top": "host_link_bytes_per_s = 32e9"}, "no source for host_link_bytes_per_s"),
        ({"top": 'kernels_like = "z"'}, "resembles the unknown GPU 'z'"),
        ({"top": 'kernels_like = "a"'}, "resembles itself"),
        ({"top": "aliases = [1]"}, "aliases"),
        ({"measured": "[gem.bf16]\ncompute = 1"}, "measured/a.toml: key 'gem'"),
        ({"measured": '[gemm.bf16]\ncompute = 0.5\nsource = "t"'}, "memory"),
        ({"top": "x ="}, "not valid TOML"),
    ],
)
def test_files_refused(tmp_path, changes, sentence):
    write(tmp_path, "a", **changes)
    with pytest.raises(SpecError, match=sentence):
        read(tmp_path)
