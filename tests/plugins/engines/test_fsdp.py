"""FSDP2: what accelerate and the tensor-parallel plans of transformers accept, and memory against a hand count."""

from __future__ import annotations

import pytest
from training_problems import LLAMA_8B, LLAMA_70B, MIXTRAL, broken, every_sentence_speaks, legal_space, question, sentences

from autoparallel_core.host import host
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
from autoparallel_core.testing.conformance import *  # noqa: F403

PLUGINS = ["fsdp"]


@pytest.mark.parametrize(
    ("config", "n_gpus", "text"),
    [
        (LLAMA_8B, 8, "tp1 pp1 dp8 zero3 mbs2"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero3 shard8 mbs1 recompute=full"),
        (LLAMA_70B, 64, "tp8 pp1 dp8 zero3 mbs1"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero2 mbs1"),
        (MIXTRAL, 64, "tp1 pp1 dp64 ep8 zero3 mbs1"),
        (LLAMA_8B, 1, "tp1 pp1 dp1 mbs1"),
    ],
)
def test_legal(config, n_gpus, text):
    assert sentences(question("fsdp", config, n_gpus), text) == {}


@pytest.mark.parametrize(
    ("config", "n_gpus", "text", "rule"),
    [
        (LLAMA_70B, 64, "tp1 pp4 dp16 zero3 mbs1", "pp = 1"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero1 mbs1", "zero 2 or 3"),
        (LLAMA_70B, 64, "tp16 pp1 dp4 zero3 mbs1", "kv heads % tp"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero3 shard24 mbs1", "shard group"),
        (LLAMA_70B, 64, "tp1 pp1 dp32 cp2 zero3 shard2 mbs1", "hsdp shards nothing"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero3 mbs3", "batch % (mbs dp)"),
        (MIXTRAL, 64, "tp1 pp1 dp64 ep16 zero3 mbs1", "experts % ep"),
        (MIXTRAL, 64, "tp8 pp1 dp8 etp8 zero3 mbs1", "etp = 1"),
        (LLAMA_70B, 32, "tp1 pp1 dp64 zero3 mbs1", "world size"),
    ],
)
def test_illegal(config, n_gpus, text, rule):
    assert rule in broken(question("fsdp", config, n_gpus), text)


def test_shard_groups_hold_whole_context_groups():
    found = sentences(question("fsdp", LLAMA_70B, 64), "tp1 pp1 dp16 cp4 zero3 shard2 mbs1")
    assert found["shard group"] == "shard group 2 does not hold whole groups of cp 4; shard 4 would do"


def test_search_and_rules_agree():
    p = question("fsdp", MIXTRAL, 16, batch=64)
    everything, kept = legal_space(p, pp=(1, 2), vpp=(1,), zero=(1, 2, 3), mbs=(1, 2), etp=(1, 2))
    assert 0 < len(kept) < len(everything)
    assert {"pp = 1", "etp = 1", "zero 2 or 3"} <= every_sentence_speaks(p, everything)
    assert set(kept.pp.tolist()) == {1}


def test_sixteen_bytes_per_parameter_over_the_shard_group():
    # fp32 parameters, gradients and two moments: 16 bytes; ZeRO-2 keeps 16-bit parameters whole: 2 + 16/S
    p = question("fsdp", LLAMA_8B, 8)
    params = 8_030_261_248  # published size of the model
    batch = StrategyBatch.of([parse_strategy(t) for t in ("tp1 pp1 dp8 zero3 mbs1", "tp1 pp1 dp8 zero2 mbs1")])
    e = evaluate(p, batch, host())
    static = [
        sum(float(e.memory[k][i]) for k in e.memory if k in {"weights", "gradients", "optimizer"} or k.startswith("no 16-bit"))
        for i in range(2)
    ]
    assert static[0] == pytest.approx(16 * params / 8, rel=1e-3)
    assert static[1] == pytest.approx(2 * params + 16 * params / 8, rel=1e-3)
