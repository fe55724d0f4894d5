"""Invariants of a training step that no constant may break."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_builders import deepseek_v3, dense, mla_moe
from training_builders import price, problem

from autoparallel_core.cost.layer import parameters
from autoparallel_core.cost.model_flops import model_flops_per_token
from autoparallel_core.ops.mesh import Mesh
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

DENSE = dense(32, 4096, 32, 8, 14336, 128256)
SPARSE = mla_moe(16, 1, 2048, 32, 64, 8)
PROBLEMS = {
    "dense": problem(DENSE),
    "dense, FP8": problem(DENSE, precision="fp8"),
    "MoE": problem(SPARSE),
    "MoE on racks": problem(SPARSE, gpu="GB200", precision="mxfp8", dispatcher="hybridep", cuda_graph="full_iteration"),
    "zero bubble": problem(DENSE, pipeline_schedule="zero_bubble"),
}
FASTEST = {"bf16": "bf16", "fp8": "fp8", "mxfp8": "fp8"}

powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def strategies(draw, n_gpus: int = 64, *, moe: bool = False) -> Strategy:
    tp, pp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    dp = n_gpus // (tp * pp * cp)
    ep = draw(st.sampled_from([e for e in (1, 2, 4, 8) if tp * cp * dp % e == 0])) if moe else 1
    zero = draw(st.integers(0, 3)) if pp == 1 else draw(st.integers(0, 1))
    return Strategy(
        tp=tp, sp=int(tp > 1) and draw(st.integers(0, 1)), pp=pp, cp=cp, dp=dp, ep=ep, zero=zero,
        shard=dp * cp if zero else 1, mbs=draw(st.sampled_from([1, 2])), recompute=draw(st.integers(0, 2)),
    )  # fmt: skip


def steps(p: Problem, *s: Strategy):
    return evaluate(p, StrategyBatch.of(s))


@pytest.mark.parametrize("name", PROBLEMS)
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_no_step_beats_the_roofline(name, data):
    """Time ≥ model FLOPs over the peak of all GPUs, and ≥ reading the weights once per micro-batch from memory."""
    p = PROBLEMS[name]
    s = data.draw(strategies(moe="MoE" in name))
    e = steps(p, s)
    flops = model_flops_per_token(p.arch, p.training.seq_len) * p.training.tokens_per_step
    peak = p.cluster.gpu.peak(FASTEST[p.training.precision]) * p.cluster.n_gpus
    assert e.total_s[0] >= flops / peak
    mesh = Mesh.of(StrategyBatch.of([s]), p.training.seq_len)
    held = sum(sum(parameters(layer.blocks, mesh)[:2])[0] * len(where) for layer, where in p.arch.layer_classes()) / s.pp
    micro_batches = p.training.global_batch_size / (s.mbs * s.dp)
    assert e.total_s[0] >= micro_batches * held / p.cluster.gpu.hbm_bytes_per_s


@pytest.mark.parametrize("name", PROBLEMS)
@given(data=st.data(), factor=st.floats(1.0, 4.0), what=st.sampled_from(["memory", "scale up", "scale out", "peak"]))
@settings(deadline=None, max_examples=25)
def test_faster_hardware_is_never_slower(name, data, factor, what):
    p = PROBLEMS[name]
    s = data.draw(strategies(moe="MoE" in name))
    g, cluster = p.cluster.gpu, p.cluster
    if what == "memory":
        cluster = evolve(cluster, gpu=evolve(g, hbm_bytes_per_s=g.hbm_bytes_per_s * factor))
    elif what == "peak":
        cluster = evolve(cluster, gpu=evolve(g, peak_flops={k: v * factor for k, v in g.peak_flops.items()}))
    else:
        at = 0 if what == "scale up" else -1
        tiers = list(cluster.tiers)
        tiers[at] = evolve(tiers[at], bytes_per_s=tiers[at].bytes_per_s * factor)
        rates = dict(g.training)
        if what == "scale up":
            rates["all_reduce_bytes_per_s"] *= factor
        cluster = evolve(cluster, tiers=tuple(tiers), gpu=evolve(g, training=rates))
    assert steps(evolve(p, cluster=cluster), s).total_s[0] <= steps(p, s).total_s[0] * (1 + 1e-12)


@given(data=st.data(), times=st.sampled_from([2, 4]))
@settings(deadline=None, max_examples=40)
def test_more_replicas_speed_up_no_more_than_their_number(data, times):
    s = data.draw(strategies(64))
    more = evolve(s, dp=s.dp * times, shard=s.shard * times if s.zero else 1)
    one = steps(problem(DENSE, batch=1024), s).total_s[0]
    many = steps(problem(DENSE, n_gpus=64 * times, batch=1024), more).total_s[0]
    assert one / many <= times * (1 + 1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_breakdowns_add_up_and_hold_nothing_negative(name, data):
    e = steps(PROBLEMS[name], *(data.draw(strategies(moe="MoE" in name)) for _ in range(3)))
    assert np.allclose(sum(e.seconds.values()), e.total_s, rtol=1e-12)
    assert np.allclose(sum(e.memory.values()), e.allocated_bytes, rtol=1e-12)
    assert all(np.all(v >= 0) for v in (*e.seconds.values(), *e.memory.values()))
    worst = sum(e.training.stage_memory.values()).max(axis=1)
    assert np.allclose(worst, e.allocated_bytes, rtol=1e-12)
    assert np.all(e.reserved_bytes >= np.minimum(e.allocated_bytes, e.capacity_bytes))


@pytest.mark.parametrize("name", PROBLEMS)
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_a_batch_is_the_concatenation_of_its_parts(name, data):
    p = PROBLEMS[name]
    parts = [data.draw(strategies(moe="MoE" in name)) for _ in range(4)]
    together = steps(p, *parts)
    for i, s in enumerate(parts):
        alone = steps(p, s)
        assert together.total_s[i] == pytest.approx(alone.total_s[0], rel=1e-12)
        assert together.allocated_bytes[i] == pytest.approx(alone.allocated_bytes[0], rel=1e-12)


@given(s=strategies(), layers=st.integers(4, 20))
@settings(deadline=None, max_examples=30)
def test_layers_cost_the_same_each(s, layers):
    """Twice the layers, twice their time: what 2L layers add to L is what L add to none."""
    s = evolve(s, pp=1, dp=s.dp * s.pp, zero=0, shard=1)
    one, two, three = (
        steps(problem(dense(k * layers, 4096, 32, 8, 14336, 128256), constants={"straggler_per_doubling": 0.0}), s).seconds
        for k in (1, 2, 3)
    )
    for cause in ("gemm", "attention", "elementwise", "tp_comm", "recompute", "host"):
        assert three[cause][0] - two[cause][0] == pytest.approx(two[cause][0] - one[cause][0], rel=1e-9, abs=1e-12), cause
    assert two["attention"][0] == pytest.approx(2 * one["attention"][0])


@given(s=strategies(), overlap=st.booleans())
@settings(deadline=None, max_examples=60)
def test_full_sharding_sheds_no_communication(s, overlap):
    """ZeRO-3 moves more bytes than ZeRO-1 (arXiv 1910.02054, section 7) and exposes no fewer seconds of them."""
    s = evolve(s, pp=1, dp=s.dp * s.pp, zero=1)
    s = evolve(s, shard=s.dp * s.cp)
    p = problem(DENSE, dp_overlap=overlap, constants={"scale_out_latency_s": 0.0})
    e = steps(p, s, evolve(s, zero=3))
    assert e.seconds["fsdp_comm"][1] >= e.seconds["dp_comm"][0] * (1 - 1e-9) - 1e-4  # calls inside a node differ
    assert e.allocated_bytes[1] <= e.allocated_bytes[0] * 1.2


@pytest.mark.parametrize("engine", ["megatron", "fsdp", "torchtitan", "deepspeed"])
def test_zero_over_one_rank_saves_nothing(engine):
    p = problem(DENSE, n_gpus=8, engine=engine)
    e = price(p, "tp8 pp1 dp1 mbs1", *(f"tp8 pp1 dp1 zero{z} mbs1" for z in (1, 2, 3)))
    assert np.allclose(e.total_s, e.total_s[0])
    assert np.allclose(e.allocated_bytes, e.allocated_bytes[0])
    assert not e.seconds["dp_comm"].any()
    assert not e.seconds["fsdp_comm"].any()


@given(s=strategies())
@settings(deadline=None, max_examples=30)
def test_recompute_trades_time_for_memory(s):
    e = steps(PROBLEMS["dense"], *(evolve(s, recompute=r) for r in (0, 1, 2)))
    assert e.total_s[0] <= e.total_s[1] <= e.total_s[2]
    assert e.memory["activations"][0] >= e.memory["activations"][1] * (1 - 1e-12)
    assert e.memory["activations"][0] >= e.memory["activations"][2] * (1 - 1e-12)
    part = steps(PROBLEMS["dense"], *(evolve(s, recompute=2, recompute_layers=n) for n in (1, 2, 4)))
    assert np.all(np.diff(part.total_s) >= -1e-12)


def test_virtual_stages_beyond_the_layers_do_not_shrink_the_bubble():
    """94 layers over 8 ranks: with 3 layers per chunk the bubble is the same whether 32 or 40 chunks hold them."""
    arch = evolve(deepseek_v3(), layers=deepseek_v3().layers[3:] * 2)
    arch = evolve(arch, layers=arch.layers[:94])
    e = price(problem(arch, n_gpus=256, batch=512), "tp1 pp8 dp32 ep8 vpp4 zero1 mbs1", "tp1 pp8 dp32 ep8 vpp5 zero1 mbs1")
    assert max(e.training.layouts[8, 4].chunk_layers) == max(e.training.layouts[8, 5].chunk_layers) == 3
    assert e.seconds["bubble"][1] == pytest.approx(e.seconds["bubble"][0], rel=0.06)  # 4/5 if chunks shrank with their number
