"""Megatron: published recipes are legal, each rule refuses its case and names the numbers, layouts are complete."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_problems import (
    DEEPSEEK_V3,
    GLM,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MIXTRAL,
    broken,
    every_sentence_speaks,
    legal_space,
    question,
    sentences,
)

from autoparallel_core.host import host
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
from autoparallel_core.testing.conformance import *  # noqa: F403
from autoparallel_megatron.layout import Abilities, layout_string, pipeline_split
from autoparallel_megatron.overlap import expert_overlap_delta, overlap_allowed
from autoparallel_megatron.padding import padded_vocabulary

PLUGINS = ["megatron"]


@pytest.mark.parametrize(
    ("config", "n_gpus", "batch", "seq", "text"),
    [
        # Megatron-Core parallelism guide and NeMo recipes
        (DEEPSEEK_V3, 1024, 8192, 4096, "tp2 pp8 vpp4 dp64 ep64 mbs1 zero1"),
        (DEEPSEEK_V3, 1024, 4096, 4096, "tp2 pp16 dp32 ep64 mbs1 zero1"),  # a row of the guide that its own formula contradicts
        (LLAMA_405B, 16384, 2048, 131072, "tp8 cp16 pp16 dp8 mbs1 zero1"),
        (LLAMA_405B, 256, 1536, 8192, "tp4 pp16 vpp8 dp4 mbs1 zero1"),
        (GLM, 128, 16, 131072, "dp2 pp4 tp8 cp2 ep16 mbs1 zero1"),
        (LLAMA_70B, 64, 128, 8192, "tp4 pp4 vpp5 dp4 mbs1 zero1"),
        (MIXTRAL, 256, 1024, 4096, "tp1 pp1 dp256 ep8 mbs2 zero1"),
        (LLAMA_70B, 64, 256, 8192, "tp1 pp1 dp64 mbs2 zero3"),
    ],
)
def test_published_recipes_are_legal(config, n_gpus, batch, seq, text):
    assert sentences(question("megatron", config, n_gpus, batch=batch, seq=seq), text) == {}


@pytest.mark.parametrize(
    ("config", "n_gpus", "text", "rule"),
    [
        (LLAMA_70B, 64, "tp8 pp4 dp4 mbs1", "world size"),
        (LLAMA_70B, 96, "tp3 pp4 dp8 mbs1", "heads % tp"),
        (LLAMA_70B, 64, "tp8 pp1 dp8 ep8 mbs1", "ep needs experts"),
        (DEEPSEEK_V3, 1024, "tp8 pp8 dp16 ep24 mbs1", "experts % ep"),
        (DEEPSEEK_V3, 1024, "tp2 pp16 dp32 ep128 mbs1", "world % (etp ep pp)"),
        (DEEPSEEK_V3, 1024, "tp2 pp8 vpp4 dp64 ep64 mbs1 sp=off", "experts with tp need sp"),
        (LLAMA_70B, 64, "tp8 pp1 vpp2 dp8 mbs1", "vpp needs pp"),
        (LLAMA_70B, 64, "tp1 pp16 vpp8 dp4 mbs1", "pipeline layout"),
        (LLAMA_70B, 64, "tp8 pp8 vpp2 dp1 mbs512", "interleaving % pp"),
        (LLAMA_70B, 64, "tp8 pp1 dp8 mbs3", "batch % (mbs dp)"),
        (LLAMA_70B, 64, "tp8 pp8 dp1 mbs1 recompute=full:11", "recompute layers"),
        (LLAMA_70B, 64, "tp8 pp1 dp8 mbs1 zero1 shard3", "shard group"),
        (LLAMA_70B, 64, "tp8 pp1 dp8 mbs1 offload=optimizer", "optimizer offload"),
        (MIXTRAL, 64, "tp1 pp1 dp64 ep8 etp3 mbs1", "expert width % etp"),
    ],
)
def test_each_rule_refuses_its_case(config, n_gpus, text, rule):
    found = sentences(question("megatron", config, n_gpus), text)
    assert rule in found
    assert re.search(r"\d", found[rule])


def test_all_violations_come_at_once_with_numbers_and_neighbours():
    found = sentences(question("megatron", LLAMA_70B, 64, seq=4096), "tp6 pp7 dp3 cp3 mbs5")
    assert {"world size", "heads % tp", "kv heads vs tp", "batch % (mbs dp)", "sequence % (2 cp tp)"} <= set(found)
    assert found["heads % tp"] == "64 query heads cannot be divided by tp 6 (remainder 4); tp 4 or 8 would do"
    assert "2 × cp 3 × tp 6 = 36 (remainder 28)" in found["sequence % (2 cp tp)"]
    assert "tp 6 × cp 3 × pp 7 × dp 3 = 378 GPUs, but the cluster has 64" in found["world size"]


def test_versions_change_the_answer():
    # num_query_groups: 8 groups over tp 16 came with 0.16.0
    old, new = (question("megatron", LLAMA_70B, 64, version=v) for v in ("0.15.0", "0.16.0"))
    assert broken(old, "tp16 pp1 dp4 mbs1") == {"kv heads % tp"}
    assert broken(new, "tp16 pp1 dp4 mbs1") == set()
    # 61 layers over 8 × 4 stages need the layout string of 0.13
    deep = "tp2 pp8 vpp4 dp64 ep64 mbs1 zero1"
    assert "pipeline layout" in broken(question("megatron", DEEPSEEK_V3, 1024, version="0.12.0"), deep)
    assert "pipeline layout" not in broken(question("megatron", DEEPSEEK_V3, 1024, version="0.13.0"), deep)
    # folding of expert and dense grids came with 0.10
    assert "experts folded before 0.10" in broken(question("megatron", DEEPSEEK_V3, 1024, version="0.9.0"), deep)


def test_software_settings_bring_their_rules():
    moe = "tp1 pp8 dp8 ep8 mbs1 zero1"
    assert broken(question("megatron", MIXTRAL, 64, ep_overlap=True), moe) == {"expert overlap"}
    assert broken(question("megatron", MIXTRAL, 64, ep_overlap=True), "tp1 pp8 vpp2 dp8 ep8 mbs1 zero1") == set()
    assert broken(question("megatron", LLAMA_70B, 64, tp_overlap=True), "tp8 pp1 dp8 mbs1 sp=off") == {"tp overlap needs sp"}
    assert broken(question("megatron", LLAMA_70B, 64, cuda_graph="partial"), "tp8 pp1 dp8 mbs1 recompute=full") == {
        "graphs and full recompute"
    }
    assert broken(question("megatron", LLAMA_70B, 64, activation_offload_layers=4), "tp8 pp2 dp4 mbs1") == {"activation offload"}
    # 31936 packed tokens over tp 4 leave 7984 rows, no multiple of 32 (a public issue of a trainer)
    packed = question("megatron", LLAMA_8B, 4, precision="mxfp8", seq=31936, gpu="B200-SXM-180GB")
    assert (
        "7984 rows per rank, and mxfp8 GEMMs need a multiple of 32" in sentences(packed, "tp4 pp1 dp1 mbs1")["rows % alignment"]
    )
    fp8 = question("megatron", LLAMA_70B, 64, precision="fp8", seq=8200)
    assert "rows % alignment" in broken(fp8, "tp8 pp1 dp8 mbs1")


def test_the_search_returns_what_the_rules_accept_and_every_rule_speaks():
    p = question("megatron", MIXTRAL, 32, batch=96, seq=2048)
    everything, kept = legal_space(p, mbs=(1, 2), vpp=(1, 2, 3, 5), sp=(0, 1), recompute=("none", "full"))
    assert 0 < len(kept) < len(everything)
    assert all(not broken(p, str(s)) for s in list(kept)[:: max(1, len(kept) // 25)])
    assert {"interleaving % pp", "experts with tp need sp"} <= every_sentence_speaks(p, everything)


# --- layouts ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 140), st.integers(1, 20), st.integers(1, 8))
def test_a_split_holds_every_layer_once(layers, pp, vpp):
    split = pipeline_split(layers, pp, vpp)
    if split is None:
        assert pp == 1 or pp * vpp > layers + 2
        return
    assert len(split.chunks) == pp * vpp
    assert sum(split.chunks) == layers
    assert min(split.chunks) >= 0
    per_rank = [sum(split.chunks[r::pp]) for r in range(pp)]
    if split.kind == "first_last":  # TransformerConfig: first, last and middle counts, each a multiple of vpp
        assert (per_rank[0], per_rank[-1]) == (split.first, split.last)
        assert len(set(per_rank[1:-1])) <= 1
        assert all(n % vpp == 0 and n > 0 for n in per_rank)
    if split.kind == "account_for_ends":
        total = layers + split.account_for_embedding + split.account_for_loss
        assert total % (pp * vpp) == 0


@given(st.integers(2, 140), st.integers(2, 16), st.integers(1, 4), st.integers(0, 1))
def test_a_layout_string_reads_back(layers, pp, vpp, mtp):
    split = pipeline_split(layers, pp, vpp)
    if split is None:
        return
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout_string(split, mtp_layers=mtp))
    stages = text.split("|")
    assert len(stages) == pp * vpp
    assert tuple(s.count("t") for s in stages) == split.chunks
    assert (stages[0][0], stages[-1][-1], text.count("E"), text.count("L")) == ("E", "L", 1, 1)
    assert stages[-1].count("m") == mtp


def test_known_layouts():
    assert layout_string(pipeline_split(61, 8, 4), mtp_layers=1) == "Et|(tt|)*29t|tmL"
    assert pipeline_split(126, 16, 1).kind == "account_for_ends"
    assert pipeline_split(61, 4, 1).kind == "first_last"
    assert pipeline_split(61, 4, 1, Abilities(first_last=False, account_for_ends=False, layout=False)) is None


# --- memory and overlap -----------------------------------------------------------------------------------------


def test_vocabulary_padding():
    # vocab_utils.py: GPT-2's 50257 over tp 8 becomes 51200
    assert padded_vocabulary(50257, np.array([1, 8])).tolist() == [50304, 51200]
    p = question("megatron", LLAMA_8B | {"vocab_size": 50257}, 8)
    e = evaluate(p, StrategyBatch.of([parse_strategy("tp8 pp1 dp1 mbs1")]), host())
    # 943 rows of 4096 over 8 ranks, two untied tables, 18 bytes each
    assert e.memory["vocabulary padding"][0] == pytest.approx(943 / 8 * 4096 * 2 * 18)


def test_expert_overlap_is_used_where_the_flag_may_be_set():
    p = question("megatron", DEEPSEEK_V3, 256)
    batch = StrategyBatch.of(
        [
            parse_strategy(t)
            for t in (
                "tp1 pp8 vpp4 dp32 ep32 mbs1",
                "tp1 pp8 dp32 ep32 mbs1",
                "tp1 pp8 vpp4 dp32 ep32 mbs1 recompute=full",
                "tp1 pp1 dp256 ep1 mbs1",
            )
        ]
    )
    assert overlap_allowed(batch).tolist() == [True, False, False, False]
    cost = {"ep_comm": np.array([4.0, 4.0, 4.0, 0.0])}
    delta = expert_overlap_delta(p, batch, cost)
    assert delta["ep_comm"].tolist() == pytest.approx([-4.0 * (1 - p.constant("ep_overlap_exposed")), 0, 0, 0])
    assert any(a.startswith("ep overlap: on with ep > 1") for a in p.assumptions)
    stated = question("megatron", DEEPSEEK_V3, 256, ep_overlap=False)
    assert expert_overlap_delta(stated, batch, cost) is None
    assert not any("ep overlap" in a for a in stated.assumptions)
    assert expert_overlap_delta(question("megatron", DEEPSEEK_V3, 256, version="0.13.0"), batch, cost) is None
