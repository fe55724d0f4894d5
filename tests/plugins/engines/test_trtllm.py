"""TensorRT-LLM: the fraction of what is left after loading, attention dp in place of tp, and its rules."""

from __future__ import annotations

import pytest
from serving_models import DEEPSEEK_V3, LLAMA_8B, QWEN3_235B, broken, has, memory, problem, space, sparse, stages

from autoparallel_core.spec.strategy import Strategy
from autoparallel_core.testing.conformance import *  # noqa: F403

PLUGINS = ["trtllm"]


def test_fraction_is_of_what_is_left():
    half, whole = (memory(problem(LLAMA_8B, "trtllm", memory_fraction=f), Strategy()) for f in (0.5, 1.0))
    assert whole.kv_cache_bytes[0] == pytest.approx(2 * half.kv_cache_bytes[0])
    used = whole.weights_bytes + whole.activation_bytes + whole.non_torch_bytes + whole.cuda_graph_bytes
    assert used[0] + whole.kv_cache_bytes[0] == pytest.approx(whole.capacity_bytes)


def test_weights_are_the_model():
    m = memory(problem(LLAMA_8B, "trtllm"), Strategy())
    assert m.weights_bytes[0] == pytest.approx(8030261248 * 2 + 131072 * 128 * 2)  # parameters, and the rotary table


def test_attention_dp_replaces_tensor_parallelism():
    p = problem(DEEPSEEK_V3, "trtllm", gpu="H200-SXM-141GB", n_gpus=16)
    assert broken(p, sparse(tp=1, attn_dp=16, ep=16)) == {}
    mixed = broken(p, sparse(tp=2, attn_dp=8, ep=16))
    assert "tp 1 attention dp 16 would do" in mixed["attention dp or tp"]
    found = space(p)
    assert ((found.attn_dp == 1) | (found.tp == 1)).all()
    assert has(found, attn_dp=8, ep=8)
    assert has(found, tp=8, ep=2, etp=4)


def test_attention_dp_replicates_dense_layers():
    p = problem(QWEN3_235B, "trtllm", gpu="H200-SXM-141GB", n_gpus=8)
    head = stages(p, sparse(tp=1, attn_dp=8, ep=8)).causes["weights: embedding and head"][0, 0]
    assert head == pytest.approx(2 * 151936 * 4096 * 2 + 4096 * 2)


def test_stages_take_the_remainder_first():
    p = problem(DEEPSEEK_V3, "trtllm", gpu="H200-SXM-141GB", n_gpus=32)
    assert stages(p, sparse(tp=8, pp=4)).layers == (16, 15, 15, 15)


def test_other_vendors_are_refused_by_name():
    assert "MI300X" in broken(problem(LLAMA_8B, "trtllm", gpu="MI300X-192GB", n_gpus=8), Strategy(dp=8))["NVIDIA GPUs only"]
