"""Tiers, overrides and refusals, on toy GPUs whose figures are easy to check by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.cluster import build_cluster, read_cluster_toml
from autoparallel_core.errors import SpecError, UnknownPlugin
from autoparallel_core.spec.cluster import CollectiveCurve, Gpu, Tier


def toy(**changes) -> Gpu:
    fields = {
        "name": "T-8",
        "vendor": "acme",
        "memory_bytes": 60e9,
        "marketing_memory_bytes": 64e9,
        "hbm_bytes_per_s": 2e12,
        "peak_flops": {"bf16": 400e12, "fp8": 800e12},
        "scale_up_bytes_per_s": 200e9,
        "scale_up_domain": 8,
        "nic_bytes_per_s": 25e9,
        "gpus_per_node": 8,
        "host_memory_bytes_per_node": 1e12,
        "host_link_bytes_per_s": 32e9,
        "training": {"all_reduce_bytes_per_s": 100e9, "hbm": 0.8},
        "collectives": {
            "all_reduce": (
                CollectiveCurve(4, 120e9, 7e-6, "t", "measured"),
                CollectiveCurve(8, 140e9, 9e-6, "t", "measured", ((1e6, 3e-5), (1e7, 2e-4))),
                CollectiveCurve(16, 40e9, 30e-6, "t", "measured"),
            )
        },
        "sources": {"scale_up_bytes_per_s": "link", "nic_bytes_per_s": "nic", "host_link_bytes_per_s": "bus"},
    }
    return Gpu(**(fields | changes))


def shape(cluster) -> list[tuple[str, int, float]]:
    return [(t.name, t.ranks, t.bytes_per_s) for t in cluster.tiers]


def test_a_domain_that_is_the_node():
    c = build_cluster(toy(), 64)
    assert shape(c) == [("scale-up", 8, 200e9), ("scale-out", 64, 25e9)]
    assert c.n_nodes == 8
    assert c.tiers[0].latency_s == 9e-6  # of the measured all-reduce over the whole domain
    assert "nic" in c.tiers[1].source


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_one_node_or_less_has_one_tier(n):
    assert shape(build_cluster(toy(), n)) == [("scale-up", n, 200e9)]


def test_without_fabric_the_node_is_the_innermost_tier():
    c = build_cluster(toy(scale_up_domain=1, scale_up_bytes_per_s=32e9), 16)
    assert shape(c) == [("node", 8, 32e9), ("scale-out", 16, 25e9)]
    assert shape(build_cluster(toy(scale_up_domain=1, scale_up_bytes_per_s=32e9), 1)) == [("node", 1, 32e9)]


def test_pairs_inside_a_node_talk_over_the_host_link():
    c = build_cluster(toy(scale_up_domain=2), 16)
    assert shape(c) == [("scale-up", 2, 200e9), ("node", 8, 32e9), ("scale-out", 16, 25e9)]
    with pytest.raises(SpecError, match=r"states no host link.*gpus_per_node 2"):
        build_cluster(toy(scale_up_domain=2, host_link_bytes_per_s=None), 16)


def test_two_baseboards_in_a_node():
    c = build_cluster(toy(), 32, gpus_per_node=16)
    assert shape(c) == [("scale-up", 8, 200e9), ("node", 16, 32e9), ("scale-out", 32, 25e9)]
    assert c.overrides == ("gpus_per_node=16",)


def test_half_a_node_halves_the_domain():
    c = build_cluster(toy(), 32, gpus_per_node=4)
    assert shape(c) == [("scale-up", 4, 200e9), ("scale-out", 32, 25e9)]
    assert c.gpu.scale_up_domain == 4


RACK = {"scale_up_domain": 72, "gpus_per_node": 4}


@pytest.mark.parametrize(
    ("n", "domain"),
    [(4, 72), (16, 72), (72, 72), (144, 72), (128, 64), (256, 64), (1024, 64), (292, 72)],
    ids=str,
)
def test_a_rack_scale_fabric_spans_nodes(n, domain):
    """128 GPUs use 64 of the 72 in each of two racks; 292 = 4·73 do not divide evenly, so the last rack is short."""
    c = build_cluster(toy(**RACK), n)
    assert c.gpu.scale_up_domain == domain
    assert c.tiers[0].ranks == min(domain, n)
    assert c.tiers[-1].ranks == n
    assert len(c.tiers) == (1 if n <= 72 else 2)


def test_overrides_change_figures_and_are_recorded():
    c = build_cluster(
        toy(),
        16,
        overrides={
            "gpu_memory_gb": 40,
            "host_memory_gb": 500,
            "gpu_flops": 200,
            "bw_nvlink": 100,
            "bw_ib": 50,
            "hbm_gb_per_s": 1000,
        },
    )
    g = c.gpu
    assert (g.memory_bytes, g.hbm_bytes_per_s, c.host_memory_bytes_per_node) == (40e9, 1e12, 500e9)
    assert g.peak_flops == {"bf16": 200e12, "fp8": 400e12}
    assert shape(c) == [("scale-up", 8, 100e9), ("scale-out", 16, 50e9)]
    assert "gpu_memory_gb=40 GB (37.25 GiB)" in c.overrides
    assert len(c.overrides) == 6
    assert g.sources["memory_bytes"] == "given by the user"


def test_links_given_scale_what_was_measured_on_them():
    g = build_cluster(toy(), 16, overrides={"bw_nvlink": 100, "bw_ib": 50}).gpu
    four, eight, sixteen = g.collectives["all_reduce"]
    assert (four.bus_bytes_per_s, eight.bus_bytes_per_s) == (60e9, 70e9)
    assert sixteen.bus_bytes_per_s == 80e9  # beyond the domain: the NIC's ratio
    assert eight.latency_s == 9e-6
    # 1 MB: 30 µs + 1.75 MB·(1/70 − 1/140 GB/s) = 42.5 µs
    assert eight.knots[0][1] == pytest.approx(42.5e-6)
    assert g.training == {"all_reduce_bytes_per_s": 50e9, "hbm": 0.8}


@pytest.mark.parametrize(("key", "flag", "si"), [("gpu_memory_gb", 40, 40e9), ("gpu_flops", 200, 200e12), ("bw_ib", 50, 50e9)])
def test_a_number_in_si_units_is_taken_as_such(key, flag, si):
    assert build_cluster(toy(), 8, overrides={key: flag}) == build_cluster(toy(), 8, overrides={key: si})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("bw_nvlink", 400, "(2 times the preset's 200: data sheets add both directions)"),
        ("bw_ib", 200, "(8 times the preset's 25: a NIC of 400 Gb/s carries 50 GB/s)"),
        ("bw_ib", 50, "=50 GB/s per GPU and direction"),
    ],
)
def test_the_multiples_of_common_mistakes_are_doubted(key, value, says):
    (shown,) = build_cluster(toy(), 8, overrides={key: value}).overrides
    assert shown.endswith(says)


def test_none_is_no_override():
    assert build_cluster(toy(), 8, overrides={"bw_ib": None}).overrides == ()


@given(st.integers(1, 4000), st.integers(1, 16))
def test_tiers_always_nest_and_span(n, per_node):
    """Whatever the counts: a refusal, or tiers that grow and end at all GPUs."""
    try:
        c = build_cluster(toy(**RACK), n, gpus_per_node=per_node)
    except SpecError:
        assert n > per_node
        assert n % per_node
        return
    ranks = [t.ranks for t in c.tiers]
    assert ranks == sorted(set(ranks))
    assert ranks[-1] == n
    assert c.tiers[0].bytes_per_s == max(t.bytes_per_s for t in c.tiers)


@pytest.mark.parametrize(
    ("n", "per_node", "sentence"),
    [
        (0, None, "n_gpus must be a positive whole number, not 0"),
        (-8, None, "not -8"),
        (8.0, None, "not 8.0"),
        (True, None, "not True"),
        (8, 0, "gpus_per_node must be a positive whole number, not 0"),
        (12, None, "12 GPUs do not fill nodes of 8; use 8 or 16 GPUs"),
        (30, 4, "use 28 or 32"),
    ],
)
def test_counts_refused(n, per_node, sentence):
    with pytest.raises(SpecError, match=sentence):
        build_cluster(toy(), n, gpus_per_node=per_node)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"bw_nvlnk": 1}, "unknown override 'bw_nvlnk'; did you mean bw_nvlink"),
        ({"bw_ib": 0}, "bw_ib must be greater than 0 GB/s per GPU and direction, not 0"),
        ({"bw_ib": float("nan")}, "greater than 0"),
        ({"bw_ib": "50"}, "greater than 0"),
        ({"gpu_memory_gb": 81559}, "81,559 GB is more than any GPU has; drivers count in MiB: 81559 MiB would be 85.5 GB"),
        ({"gpu_memory_gb": 5e7}, "neither a plausible number of GB nor of SI"),
    ],
)
def test_overrides_refused(overrides, sentence):
    with pytest.raises(SpecError, match=sentence):
        build_cluster(toy(), 8, overrides=overrides)


def test_tiers_given_replace_the_preset_and_must_nest():
    tiers = [Tier("box", 8, 1e11, 1e-6, "me"), Tier("rail", 32, 4e10, 2e-6, "me"), Tier("spine", 64, 1e10, 3e-6, "me")]
    assert build_cluster(toy(), 64, tiers=tiers).tiers == tuple(tiers)
    with pytest.raises(SpecError, match="does not hold whole groups of 'box'"):
        build_cluster(toy(), 64, tiers=[tiers[0], Tier("rail", 12, 4e10, 2e-6, "me"), tiers[2]])
    with pytest.raises(SpecError, match="joins 64 GPUs, the cluster has 128"):
        build_cluster(toy(), 128, tiers=tiers)
    with pytest.raises(SpecError, match="must be positive"):
        build_cluster(toy(), 8, tiers=[Tier("box", 8, 0.0, 1e-6, "me")])
    with pytest.raises(SpecError, match="at least one"):
        build_cluster(toy(), 8, tiers=[])


class ToyHost:
    def gpu(self, name: str) -> Gpu:
        known = {"t-8": TOY, "t-72": RACK_TOY}
        if name.lower() not in known:
            raise UnknownPlugin(f"unknown GPU '{name}'")
        return known[name.lower()]


TOY, RACK_TOY = toy(), toy(name="T-72", **RACK)


def read(tmp_path: Path, text: str):
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    return read_cluster_toml(file, ToyHost())


def test_a_file_of_one_group(tmp_path):
    c = read(tmp_path, '[[gpus]]\ntype = "t-8"\nnodes = 4\nbw_ib = 50\n')
    assert c == build_cluster(TOY, 32, overrides={"bw_ib": 50})
    assert read(tmp_path, '[[gpus]]\ntype = "T-8"\ncount = 32\n') == build_cluster(TOY, 32)


def test_groups_of_one_kind_add_up(tmp_path):
    text = '[[gpus]]\ntype = "T-8"\nnodes = 1\n[[gpus]]\ntype = "t-8"\ncount = 24\n'
    assert read(tmp_path, text).n_gpus == 32


def test_groups_of_several_kinds_are_parts(tmp_path):
    text = '[[gpus]]\ntype = "T-8"\nnodes = 1\n[[gpus]]\ntype = "T-72"\nnodes = 2\n[[gpus]]\ntype = "t-8"\nnodes = 2\n'
    c = read(tmp_path, text)
    eight, rack = c.kinds
    assert [(k.gpu.name, k.n_gpus) for k in c.kinds] == [("T-8", 24), ("T-72", 2 * rack.gpus_per_node)]
    assert eight == build_cluster(TOY, 24)
    assert c.gpu == eight.gpu
    assert c.n_gpus == 24 + rack.n_gpus
    assert c.n_nodes == eight.n_nodes + rack.n_nodes
    assert c.tiers[-1].ranks == c.n_gpus
    assert c.tiers[-1].bytes_per_s == min(k.gpu.nic_bytes_per_s for k in c.kinds)
    assert c.host_memory_bytes_per_node == min(k.host_memory_bytes_per_node for k in c.kinds)


def test_groups_that_differ_in_a_figure_are_kinds(tmp_path):
    c = read(tmp_path, '[[gpus]]\ntype = "T-8"\nnodes = 1\n[[gpus]]\ntype = "T-8"\nnodes = 2\nbw_ib = 9\n')
    assert [k.gpu.nic_bytes_per_s for k in c.kinds] == [25e9, 9e9]
    assert c.overrides == ("T-8: bw_ib=9 GB/s per GPU and direction",)


def test_network_levels_with_oversubscription(tmp_path):
    c = read(
        tmp_path,
        """
        [[gpus]]
        type = "T-8"
        nodes = 16
        [[network]]
        name = "leaf"
        gpus = 64
        [[network]]
        name = "spine"
        oversubscription = 2.5
        latency_us = 20
        """,
    )
    assert shape(c) == [("scale-up", 8, 200e9), ("leaf", 64, 25e9), ("spine", 128, 10e9)]
    assert c.tiers[2].latency_s == pytest.approx(20e-6)
    assert "oversubscribed 2.5 to 1" in c.tiers[2].source


def test_a_small_cluster_ends_before_the_wider_levels(tmp_path):
    text = (
        '[[gpus]]\ntype = "T-8"\nnodes = 2\n[[network]]\nname = "leaf"\ngpus = 64\ngb_per_s = 20\n[[network]]\nname = "spine"\n'
    )
    assert shape(read(tmp_path, text)) == [("scale-up", 8, 200e9), ("leaf", 16, 20e9)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "required field missing @ .*gpus"),
        ("gpus = []", "no \\[\\[gpus\\]\\] group"),
        ("gpus = 3", "gpus"),
        ('[[gpus]]\ntype = "T-8"\n', "either 'nodes' or 'count'"),
        ('[[gpus]]\ntype = "T-8"\nnodes = 1\ncount = 8\n', "either 'nodes' or 'count'"),
        ('[[gpus]]\ntype = "T-8"\nnodes = 0\n', "must be positive"),
        ('[[gpus]]\ntype = "T-8"\nnodes = 1.5\n', "1.5 is not a whole number|int.*nodes"),
        ('[[gpus]]\ntype = "T-8"\nnodes = "2"\n', "nodes"),
        ('[[gpus]]\ntype = "T-8"\nnodes = 1\nbw_nic = 3\n', "bw_nic"),
        ('[[gpus]]\ntype = "T-8"\ncount = 12\n', "do not fill nodes of 8; use 8 or 16"),
        ('[[gpus]]\ntype = "T-9"\nnodes = 1\n', "unknown GPU 'T-9'"),
        (
            '[[gpus]]\ntype = "T-8"\nnodes = 1\n[[gpus]]\ntype = "T-72"\nnodes = 2\n[[network]]\nname = "s"\n',
            "levels need GPUs of one kind",
        ),
        ('[[gpus]]\ntype = "T-8"\nnodes = 1\n[[gpus]]\ntype = "T-8"\ncount = 3\nbw_ib = 9\n[[gpus]]\ntype = "x"\n', "'x'"),
        ('[[gpus]]\ntype = "T-8"\nnodes = 4\n[[network]]\nname = "leaf"\n[[network]]\nname = "s"\n', "'leaf': 'gpus' is missing"),
        ('[[gpus]]\ntype = "T-8"\nnodes = 4\n[[network]]\nname = "s"\noversubscription = 0.5\n', "1 or more, not 0.5"),
        ('[[gpus]]\ntype = "T-8"\nnodes = 4\n[[network]]\nname = "s"\ngpus = 12\n[[network]]\nname = "t"\n', "whole groups"),
        ('[[gpus]]\ntype = "T-8"\nnodes = 4\n[[network]]\nname = "s"\ngpus = 16\n', "joins 16 GPUs, the cluster has 32"),
        ("x = ", "not valid TOML"),
    ],
)
def test_files_refused(tmp_path, text, sentence):
    with pytest.raises(SpecError, match=sentence) as e:
        read(tmp_path, text)
    assert str(tmp_path / "cluster.toml") in str(e.value)
    assert "\n" not in str(e.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SpecError, match="No such file"):
        read_cluster_toml(tmp_path / "none.toml", ToyHost())
    with pytest.raises(SpecError, match="directory"):
        read_cluster_toml(tmp_path, ToyHost())
