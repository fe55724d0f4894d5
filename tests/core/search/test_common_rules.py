"""Shared rule factories against brute force over small grids, sentences with their neighbours, versions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.search import common_rules as common
from autoparallel_core.search import facts
from autoparallel_core.spec.arch import Layer
from autoparallel_core.spec.blocks import attention_block, mla_block, mlp_block, moe_block
from autoparallel_core.spec.op import Axis, Scan
from autoparallel_core.spec.quantization import FORMATS
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.testing.toys import toy_dense_arch, toy_moe_arch, toy_problem


def grid(**axes):
    names = list(axes)
    return StrategyBatch.of([Strategy(**dict(zip(names, row, strict=True))) for row in itertools.product(*axes.values())])


def problem(arch=None, n_gpus=32):
    return toy_problem(host().engines()["megatron"].name, "training", host=host(), arch=arch, n_gpus=n_gpus)


def check(rule, p, batch, expected):
    """The mask equals a plain Python statement of the rule, and each refused strategy has a sentence with a number."""
    mask = rule.broken(p, batch)
    assert mask.dtype == np.bool_
    assert mask.tolist() == [bool(expected(s)) for s in batch]
    assert 0 < mask.sum() < len(batch)
    for i in np.flatnonzero(mask):
        assert any(c.isdigit() for c in rule.sentence(p, batch[int(i)]))


def test_heads():
    p, batch = problem(), grid(tp=range(1, 40))
    check(common.heads_divisible("s"), p, batch, lambda s: 32 % s.tp)
    check(common.kv_heads_divisible("s"), p, batch, lambda s: 8 % s.tp)
    check(common.kv_heads_divisible_or_replicated("s"), p, batch, lambda s: 8 % s.tp and s.tp % 8)


def test_world_and_grid():
    moe = problem(toy_moe_arch())
    batch = grid(tp=(1, 2, 3), cp=(1, 2), pp=(1, 2), dp=(2, 4, 8), ep=(1, 3, 8), etp=(1, 2))
    check(common.world_product("s"), moe, batch, lambda s: s.tp * s.cp * s.pp * s.dp != 32)
    check(common.expert_grid("s"), moe, batch, lambda s: (s.tp * s.cp * s.dp) % (s.ep * s.etp))
    check(common.experts_divisible("s"), moe, batch, lambda s: 32 % s.ep)
    dense = problem()
    check(common.ep_needs_experts("s"), dense, batch, lambda s: s.ep * s.etp > 1)
    assert not common.ep_needs_experts("s").broken(moe, batch).any()
    assert not common.expert_grid("s").broken(dense, batch).any()


def test_batch_sequence_stages_and_shards():
    p, batch = problem(), grid(mbs=(1, 3, 4), dp=(1, 5, 8), cp=(1, 3), tp=(1, 7), sp=(0, 1), pp=(1, 3), vpp=(1, 8))
    check(common.batch_divisible("s"), p, batch, lambda s: 256 % (s.mbs * s.dp))
    rule = common.sequence_divisible(
        "s", lambda s: (1 + (s.cp > 1)) * s.cp * (1 + (s.tp - 1) * s.sp), common.sequence_degree_text
    )
    check(rule, p, batch, lambda s: 4096 % ((2 * s.cp if s.cp > 1 else 1) * (s.tp if s.sp else 1)))
    check(common.stages_at_most_layers("s"), p, batch, lambda s: s.pp * s.vpp > 16)
    shards = grid(zero=(0, 1, 3), shard=(1, 2, 3, 4, 8), dp=(2, 4), cp=(1, 2))
    check(common.shard_group("s", with_cp=False), p, shards, lambda s: s.zero and (s.dp * s.cp) % s.shard)
    check(common.shard_group("s"), p, shards, lambda s: s.zero and ((s.dp * s.cp) % s.shard or s.shard % s.cp))
    check(common.only_value("pp", 1, "it has no pipeline", "s"), p, batch, lambda s: s.pp != 1)


def test_quantised_widths():
    block = FORMATS["fp8_block128"].name

    def quantised(b):
        ops = tuple(evolve(op, weights=tuple(evolve(w, format=block) if w.linear else w for w in op.weights)) for op in b.ops)
        return evolve(b, ops=ops)

    layer = Layer((
        quantised(attention_block(hidden=4096, heads=32, kv_heads=2, head_dim=128)),
        quantised(moe_block(hidden=4096, experts=8, top_k=2, expert_intermediate=1536, shared_intermediate=1024)),
    ))  # fmt: skip
    p = problem(evolve(toy_moe_arch(), layers=(layer,)))
    batch = grid(tp=(1, 2, 3, 4, 8, 16), etp=(1, 2, 4, 8))

    def expected(s):
        # heads 4096, shared 1024 over tp; expert width 1536 over etp; two kv heads are replicated beyond tp 2
        dense = any(s.tp > 1 and size % (s.tp * 128) for size in (4096, 1024))
        return dense or (s.etp > 1 and 1536 % (s.etp * 128))

    check(common.quantised_width_aligned("s"), p, batch, expected)
    said = common.quantised_width_aligned("s").sentence(p, Strategy(tp=1, etp=8))
    assert said == (
        "mlp.experts.gate_proj, mlp.experts.up_proj and mlp.experts.down_proj of width 1536 over etp give 192 on each of 8 "
        "ranks, not a multiple of the fp8_block128 block 128"
    )
    assert not common.quantised_width_aligned("s").broken(problem(), batch).any()


def quantised_moe(fmt, width):
    """Experts of one width whose matrices are all stored in one format."""
    block = moe_block(hidden=4096, experts=8, top_k=2, expert_intermediate=width, shared_intermediate=0)
    ops = tuple(evolve(op, weights=tuple(evolve(w, format=fmt) if w.linear else w for w in op.weights)) for op in block.ops)
    return problem(evolve(toy_moe_arch(), layers=(Layer((evolve(block, ops=ops),)),)))


@pytest.mark.parametrize(
    ("fmt", "contracted", "result"),
    [("fp8_block128", 128, 128), ("nvfp4", 16, 1), ("mxfp4", 32, 1), ("int4_g128", 128, 8), ("int8_g64z", 64, 4)],
)
def test_groups_of_weights_lie_along_the_contracted_axis(fmt, contracted, result):
    """gate and up give the expert's width, down contracts it; only square tiles and packed words bind the former."""
    rule, batch = common.quantised_width_aligned("s"), grid(etp=(1, 2, 4, 8, 16))
    for width in (1856, 2880, 1544):
        step = math.lcm(contracted, result)
        check(rule, quantised_moe(fmt, width), batch, lambda s, w=width, b=step: s.etp > 1 and w % (s.etp * b))
        (down,) = {w.block for w in facts.quantised_widths(quantised_moe(fmt, width).arch) if w.module.endswith("down_proj")}
        ups = {w.block for w in facts.quantised_widths(quantised_moe(fmt, width).arch) if w.module.endswith("up_proj")}
        assert (down, ups) == (contracted, {result} - {1})


def test_expert_kernels_that_pad_take_any_width():
    rule = common.quantised_width_aligned("s", padded_experts=("mxfp4",))
    assert not rule.broken(quantised_moe("mxfp4", 2880), grid(etp=(4, 8))).any()
    assert rule.broken(quantised_moe("nvfp4", 2888), grid(etp=(4, 8))).all()


def test_sentences_name_the_nearest_legal_values():
    p = problem()
    assert common.heads_divisible("s").sentence(p, Strategy(tp=12)) == (
        "32 query heads cannot be divided by tp 12 (remainder 8); tp 8 or 16 would do"
    )
    assert common.world_product("s").sentence(p, Strategy(tp=8, dp=3)).endswith("but the cluster has 32; dp 4 would do")
    assert common.world_product("s").sentence(p, Strategy(tp=3, dp=3)).endswith("so no dp makes up for it")
    both = common.batch_divisible("s").sentence(p, Strategy(mbs=3, dp=8))
    assert "micro-batch 3 × dp 8 = 24 (remainder 16); mbs 2 or 4 would do" in both


@given(st.integers(1, 300), st.integers(1, 300))
def test_neighbours_are_legal_and_nearest(value, n):
    found = common.neighbours(value, lambda v: n % v == 0, limit=n)
    legal = [v for v in range(1, n + 1) if n % v == 0 and v != value]
    assert all(v in legal for v in found)
    if legal:
        assert abs(found[0] - value) == min(abs(v - value) for v in legal)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=4), st.integers(1, 64))
def test_the_greatest_common_divisor_stands_for_all(numbers, d):
    assert (math.gcd(*numbers) % d == 0) == all(n % d == 0 for n in numbers)


# --- versions ---------------------------------------------------------------------------------------------------


def test_bounds_are_inclusive_and_exclusive():
    rules = (
        common.only_value("pp", 1, "x", "s", rule_id="old", until="0.13"),
        common.only_value("pp", 1, "x", "s", rule_id="new", since="0.13"),
        common.only_value("pp", 1, "x", "s", rule_id="always"),
    )

    def ids(version):
        return [r.id for r in common.holding(rules, version)]

    assert ids("0.12.9") == ["old", "always"]
    assert ids("0.13.0") == ids("0.13") == ids("1.0") == ["new", "always"]
    assert ids("0.13.0rc1") == ["old", "always"]  # a release candidate comes before its release
    with pytest.raises(SpecError, match="'nightly' is not a version number"):
        common.holding(rules, "nightly")


# --- facts ------------------------------------------------------------------------------------------------------


def test_facts_of_heterogeneous_models():
    a = attention_block(hidden=1024, heads=16, kv_heads=4, head_dim=64)
    b = attention_block(hidden=1024, heads=8, kv_heads=2, head_dim=128)
    latent = mla_block(
        hidden=1024, heads=16, q_lora_rank=None, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
    )
    scan = Scan("scan", algorithm="mamba2", heads=Axis("heads", 24, 64), key_heads=Axis("latent", 8, 128))
    linear = Scan("scan", algorithm="gated_delta", heads=Axis("heads", 32, 128), key_heads=Axis("heads", 16, 128))
    experts = moe_block(hidden=1024, experts=12, top_k=2, expert_intermediate=512)
    mlp = mlp_block(hidden=1024, intermediate=4096)
    stack = ((a, experts), (b, mlp), (latent, mlp), (evolve(mlp, ops=(scan,)),), (evolve(mlp, ops=(linear,)),))
    arch = evolve(toy_dense_arch(), layers=tuple(map(Layer, stack)))
    assert facts.query_heads(arch) == (8, 16)
    assert facts.kv_heads(arch) == (2, 4, 16)
    assert facts.routed_experts(arch) == (12,)
    assert facts.expert_widths(arch) == (512,)
    assert facts.has_latent_attention(arch)
    assert facts.state_space_heads(arch) == (24,)
    assert facts.state_space_groups(arch) == (8,)
    assert facts.linear_attention_heads(arch) == (16, 32)
    assert not facts.is_moe(toy_dense_arch())


def test_facts_are_kept_per_object_and_let_go():
    calls = []

    @facts.once_per_model
    def count(arch):
        calls.append(arch.name)
        return len(calls)

    one, other = toy_dense_arch(), toy_dense_arch()
    assert (count(one), count(one), count(other), count(one)) == (1, 1, 2, 1)
    del other
    import gc

    gc.collect()
    assert count(toy_dense_arch()) == 3
