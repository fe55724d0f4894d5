"""How keys meet queries under context parallelism: hand calculations of each exchange, and that each is paid for."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from training_builders import price, problem

import autoparallel_core as ap
from autoparallel_core.cost.context_parallel import Exchange, exposed_s
from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.ops.mesh import Mesh
from autoparallel_core.spec.problem import Problem

KINDS = ("p2p", "all_gather", "a2a")


def exchanging(kind: str) -> Problem:
    base = problem(seq_len=65536)
    return evolve(base, software=evolve(base.software, cp_comm=kind))


def seconds(
    kind: str, *, kv_heads: float = 8.0, compute_s: float = 0.0, cp: int = 4, kv_mib: float = 64.0, query_mib: float = 256.0
) -> tuple[float, float, TrainingHardware]:
    """One layer over ``cp`` neighbours, each of which holds so much of keys and values, and of queries and results."""
    asked = exchanging(kind)
    hw = TrainingHardware.of(asked)
    mesh = Mesh.of(ap.StrategyBatch.from_columns(1, cp=[cp], dp=[2]), asked.training.seq_len)
    held = Exchange(*(np.array([x]) for x in (kv_mib * 2.0**20, query_mib * 2.0**20, kv_heads, compute_s, compute_s)))
    forward, backward = exposed_s(hw, mesh, held)
    return float(forward[0]), float(backward[0]), hw


def test_a_ring_that_nothing_hides_sends_three_chunks():
    forward, backward, hw = seconds("p2p")
    net = hw.network
    one = 64 * 2**20 / net.scale_up_bytes_per_s
    assert forward == pytest.approx(3 * (one + net.scale_up_latency_s))
    assert backward == pytest.approx(2 * forward)


def test_a_ring_hides_behind_long_attention_but_for_the_interference():
    forward, _, hw = seconds("p2p", compute_s=1.0)
    bare, _, _ = seconds("p2p")
    assert forward == pytest.approx(hw.overlap_loss * bare)


def test_gathered_keys_wait_for_the_whole_sequence():
    forward, backward, hw = seconds("all_gather", compute_s=1.0)
    net = hw.network
    assert forward == pytest.approx(3 / 4 * 4 * 64 * 2**20 / net.scale_up_bytes_per_s + net.scale_up_latency_s)
    assert backward == pytest.approx(2 * forward)


def test_traded_heads_move_three_quarters_of_everything_once():
    forward, backward, hw = seconds("a2a", compute_s=1.0)
    net = hw.network
    moved = 3 / 4 * (256 + 64) * 2**20
    assert forward == pytest.approx(moved / net.scale_up_bytes_per_s + 4 * net.scale_up_latency_s)
    assert backward == pytest.approx(forward)


def test_heads_of_keys_are_copied_where_ranks_outnumber_them():
    """Two heads over four ranks: each is sent twice."""
    few, _, hw = seconds("a2a", kv_heads=2.0)
    enough, _, _ = seconds("a2a", kv_heads=4.0)
    assert few - enough == pytest.approx(3 / 4 * 64 * 2**20 / hw.network.scale_up_bytes_per_s)


@pytest.mark.parametrize("kind", KINDS)
def test_only_context_parallelism_pays(kind: str):
    asked = exchanging(kind)
    assert price(asked, "tp4 pp2 dp8 mbs1").seconds["cp_comm"][0] == 0.0
    assert price(asked, "tp4 pp2 dp4 cp2 mbs1").seconds["cp_comm"][0] > 0.0


def test_with_as_many_key_heads_as_query_heads_trading_them_is_cheapest():
    """Over eight ranks a gather brings 7 times the keys of one; trading moves 7/8 of four tensors once (Ulysses, section 3.2)."""
    found = {kind: seconds(kind, kv_heads=64.0, cp=8, kv_mib=256.0, query_mib=256.0)[0] for kind in KINDS}
    assert found["a2a"] < found["all_gather"] / 3
    assert found["a2a"] < found["p2p"] / 3
