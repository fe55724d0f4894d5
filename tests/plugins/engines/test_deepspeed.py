"""DeepSpeed: ZeRO against pipelines and experts, Ulysses, the release that brought AutoEP, memory by hand."""

from __future__ import annotations

import pytest
from training_problems import LLAMA_8B, LLAMA_70B, MIXTRAL, broken, every_sentence_speaks, legal_space, question, sentences

from autoparallel_core.host import host
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
from autoparallel_core.testing.conformance import *  # noqa: F403

PLUGINS = ["deepspeed"]


@pytest.mark.parametrize(
    ("config", "n_gpus", "text"),
    [
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero3 mbs1"),
        (LLAMA_70B, 64, "tp1 pp4 dp16 zero1 mbs1"),
        (LLAMA_70B, 64, "tp4 pp1 dp16 zero3 mbs1"),
        (LLAMA_70B, 64, "tp1 pp1 cp8 dp8 zero3 mbs1"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero3 shard8 mbs1"),
        (MIXTRAL, 64, "tp1 pp1 dp64 ep8 zero2 mbs1"),
        (MIXTRAL, 64, "tp1 pp1 dp64 ep8 zero3 mbs1"),
    ],
)
def test_legal(config, n_gpus, text):
    s = parse_strategy(text)
    assert sentences(question("deepspeed", config, s.world), text) == {}


@pytest.mark.parametrize(
    ("config", "text", "rule"),
    [
        (LLAMA_70B, "tp4 pp4 dp4 zero2 mbs1", "pipeline needs zero ≤ 1"),
        (LLAMA_70B, "tp4 pp4 dp4 zero1 mbs1", "autotp in a pipeline"),
        (LLAMA_70B, "tp4 pp1 cp2 dp8 zero1 mbs1", "autotp and ulysses"),
        (LLAMA_70B, "tp4 pp4 vpp2 dp4 zero1 mbs1", "vpp = 1"),
        (LLAMA_70B, "tp1 pp1 dp64 zero1 shard8 mbs1", "hpz and mics are zero 3"),
        (LLAMA_70B, "tp1 pp1 dp64 zero3 shard24 mbs1", "shard group"),
        (LLAMA_70B, "tp1 pp96 dp1 mbs1", "pp ≤ layers"),
        (MIXTRAL, "tp4 pp1 dp16 ep8 etp4 zero1 mbs1", "etp = 1"),
        (MIXTRAL, "tp4 pp2 dp8 ep8 zero1 mbs1", "folding excludes"),
        (MIXTRAL, "tp4 pp1 dp16 ep8 zero1 mbs1 offload=optimizer", "folding excludes offload"),
        (MIXTRAL, "tp1 pp1 cp2 dp32 ep8 zero3 mbs1", "autoep zero 3 excludes"),
    ],
)
def test_illegal(config, text, rule):
    s = parse_strategy(text)
    assert rule in broken(question("deepspeed", config, s.world), text)


def test_releases_differ():
    moe = "tp1 pp1 dp64 ep8 zero3 mbs1"
    assert broken(question("deepspeed", MIXTRAL, 64, version="0.18.9"), moe) == {"experts and zero 3"}
    assert broken(question("deepspeed", MIXTRAL, 64, version="0.19.2"), moe) == set()
    sharded = "tp4 pp1 dp16 zero3 mbs1"
    assert broken(question("deepspeed", LLAMA_70B, 64, version="0.19.3"), sharded) == {"autotp and zero 3"}
    assert broken(question("deepspeed", LLAMA_70B, 64, version="0.19.4"), sharded) == set()
    uneven = LLAMA_8B | {"num_attention_heads": 36, "num_key_value_heads": 12, "hidden_size": 4608}
    ulysses = "tp1 pp1 cp8 dp8 zero3 mbs1"
    assert broken(question("deepspeed", uneven, 64, version="0.15.0"), ulysses) == {"heads % (tp cp)"}
    assert broken(question("deepspeed", uneven, 64, version="0.16.0"), ulysses) == set()


def test_zero_divides_by_data_parallel_ranks_only():
    # bf16 parameters and gradients, 20 bytes of fp32 state: 4 + 20/dp per parameter
    params = 8_030_261_248
    p = question("deepspeed", LLAMA_8B, 8)
    batch = StrategyBatch.of([parse_strategy("tp1 pp1 dp8 zero1 mbs1")])
    e = evaluate(p, batch, host())
    static = sum(float(e.memory[k][0]) for k in ("weights", "gradients", "optimizer"))
    assert static == pytest.approx((4 + 20 / 8) * params, rel=1e-3)


def test_search_and_rules_agree():
    p = question("deepspeed", MIXTRAL, 16, batch=64)
    everything, kept = legal_space(p, vpp=(1, 2), mbs=(1,), recompute=("none",))
    assert 0 < len(kept) < len(everything)
    assert {"pipeline needs zero ≤ 1", "vpp = 1"} <= every_sentence_speaks(p, everything)


@pytest.mark.parametrize("text", ["tp4 pp4 dp4 zero1 mbs1", "tp4 pp3 dp4 zero1 mbs1"])
def test_layers_cut_by_hand_may_be_piped(text):
    """Megatron-DeepSpeed trained models of 176 and 530 billion parameters so."""
    p = question("deepspeed", LLAMA_70B, parse_strategy(text).world, own_tensor_parallel=True)
    assert broken(p, text) == set()
