"""torchtitan: parallel_dims of two releases, pipeline stages by brute force, what its decoder refuses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_problems import (
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MIXTRAL,
    TIED,
    broken,
    every_sentence_speaks,
    legal_space,
    question,
    sentences,
)

from autoparallel_core.testing.conformance import *  # noqa: F403
from autoparallel_torchtitan.rule_set import layers_per_stage

PLUGINS = ["torchtitan"]


@pytest.mark.parametrize(
    ("config", "n_gpus", "text"),
    [
        (LLAMA_8B, 8, "tp1 pp1 dp8 zero3 mbs2"),
        (LLAMA_70B, 256, "tp8 pp1 dp32 zero3 mbs16"),
        (LLAMA_405B, 512, "tp8 pp8 dp8 zero3 mbs8"),
        (LLAMA_405B, 512, "tp8 pp8 vpp2 dp8 zero3 mbs8"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero3 shard8 mbs1"),
        (MIXTRAL, 64, "tp2 pp1 dp32 ep8 zero3 mbs1"),
        (LLAMA_8B, 8, "tp1 pp1 dp8 mbs1"),
    ],
)
def test_legal(config, n_gpus, text):
    assert sentences(question("torchtitan", config, n_gpus), text) == {}


@pytest.mark.parametrize(
    ("config", "n_gpus", "text", "rule"),
    [
        (LLAMA_70B, 64, "tp16 pp1 dp4 zero3 mbs1", "kv heads % tp"),
        (TIED, 64, "tp1 pp2 dp32 zero3 mbs1", "tied embeddings in a pipeline"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero1 mbs1", "zero 0, 2 or 3"),
        (MIXTRAL, 64, "tp8 pp1 dp8 etp8 zero3 mbs1", "etp = 1"),
        (MIXTRAL, 64, "tp1 pp1 dp64 ep8 zero3 shard4 mbs1", "ep grid"),
        (LLAMA_70B, 64, "tp1 pp1 dp64 zero3 mbs1 offload=optimizer", "offload = 0"),
        (LLAMA_70B, 64, "tp1 pp1 vpp2 dp64 zero3 mbs1", "vpp needs pp"),
        (LLAMA_8B, 64, "tp1 pp32 vpp2 dp2 zero3 mbs1", "stages ≤ layers + 2"),
        (LLAMA_70B, 64, "tp1 pp8 vpp4 dp8 zero3 mbs1", "layers per stage"),
    ],
)
def test_illegal(config, n_gpus, text, rule):
    assert rule in broken(question("torchtitan", config, n_gpus), text)


def test_sequence_and_context():
    assert "sequence % (2 cp tp)" in broken(question("torchtitan", LLAMA_8B, 64, seq=4100), "tp8 pp1 dp8 zero3 mbs1")
    short = LLAMA_8B | {"max_position_embeddings": 4096}
    assert broken(question("torchtitan", short, 8, seq=8192), "tp1 pp1 dp8 zero3 mbs1") == {"context length"}


def test_releases_differ():
    moe = "tp2 pp1 dp32 ep8 etp2 zero3 mbs1"
    assert "etp = 1" in broken(question("torchtitan", MIXTRAL, 64, version="0.3.0"), moe)
    assert broken(question("torchtitan", MIXTRAL, 64, version="0.2.2"), moe) == set()
    # 0.2: with etp 1, ep takes all of tp; 8 experts over tp 2 leave 4 of dp_shard
    assert broken(question("torchtitan", MIXTRAL, 64, version="0.2.2"), "tp4 pp1 dp16 ep2 zero3 mbs1") == {"ep borrows cp and tp"}
    ddp = "tp2 pp1 dp32 mbs1"
    assert broken(question("torchtitan", LLAMA_70B, 64, version="0.2.2"), ddp) == {"ddp is one-dimensional"}
    assert broken(question("torchtitan", LLAMA_70B, 64, version="0.3.0"), ddp) == set()


def test_graphs_exclude_pipelines_and_most_dispatchers():
    p = question("torchtitan", MIXTRAL, 64, cuda_graph="full_iteration")
    assert broken(p, "tp1 pp2 dp32 ep8 zero3 mbs1") == {"graphs exclude pipelines", "graphs exclude ep"}
    assert broken(question("torchtitan", MIXTRAL, 64, cuda_graph="full_iteration", dispatcher="hybridep"),
                  "tp1 pp1 dp64 ep8 zero3 mbs1") == set()  # fmt: skip


@given(st.integers(1, 130), st.integers(1, 80))
def test_layers_per_stage_by_brute_force(layers, stages):
    found = layers_per_stage(layers, stages)
    some = [n for n in range(1, layers + 3) if math.ceil((layers + 2) / n) == stages]
    assert (found in some) if some else found is None


def test_search_and_rules_agree():
    p = question("torchtitan", MIXTRAL, 32, batch=64)
    everything, kept = legal_space(p, zero=(0, 1, 3), mbs=(1,), vpp=(1, 2, 3), etp=(1, 2), recompute=("none",), offload=(0, 1))
    assert 0 < len(kept) < len(everything)
    assert {"etp = 1", "zero 0, 2 or 3", "offload = 0"} <= every_sentence_speaks(p, everything)
