"""SGLang: published KV pools, the default memory fraction worked out by hand, attention dp, and its rules."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from serving_models import (
    DEEPSEEK_V3,
    GEMMA3_27B,
    GIB,
    LLAMA_8B,
    QWEN3_235B,
    broken,
    has,
    memory,
    problem,
    space,
    sparse,
    stages,
    weights_gib,
)

from autoparallel_core.spec.strategy import Strategy
from autoparallel_core.testing.conformance import *  # noqa: F403

PLUGINS = ["sglang"]


def test_published_pools():
    # vllm-project/vllm issue 21348: Qwen3-235B-A22B-FP8, TP4 on H100, mem_fraction_static 0.93
    p = problem(QWEN3_235B, "sglang", n_gpus=4, version="0.4.9", memory_fraction=0.93)
    m = memory(p, sparse(tp=4))
    assert m.kv_tokens[0] == pytest.approx(367404, rel=3e-3)
    assert m.kv_cache_bytes[0] / GIB == pytest.approx(16.46, rel=3e-3)
    # ai-dynamo/aisimulate pull 263: DeepSeek-R1, TP8 on H200, 0.82
    r1 = problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=8, memory_fraction=0.82)
    assert memory(r1, sparse(tp=8)).kv_tokens[0] == pytest.approx(509000, rel=5e-3)


def test_default_fraction_by_hand():
    # H100: 512 + 1.5 × 8192 + 1/8 × 1024 for activations and 2 × 256 for graphs, in MiB
    p = problem(LLAMA_8B, "sglang", device_memory_bytes=81559 * 2.0**20)
    m = memory(p, Strategy())
    fraction = 1 - (512 + 1.5 * 8192 + 128 + 512) / 81559
    free = 81559 * 2.0**20 - 0.7 * GIB
    assert m.kv_cache_bytes[0] == pytest.approx(fraction * free - m.weights_bytes[0], rel=1e-9)
    assert m.activation_bytes[0] + m.cuda_graph_bytes[0] == pytest.approx((1 - fraction) * free)
    assert m.activation_bytes[0] / m.cuda_graph_bytes[0] == pytest.approx((512 + 1.5 * 8192 + 128) / 512)


def left_free(**work):
    """Share of the free memory that the default fraction leaves to activations and graphs, times the device: the reserve."""
    p = problem(LLAMA_8B, "sglang", **work)
    m = memory(p, Strategy())
    free = m.capacity_bytes - m.non_torch_bytes[0]
    return (m.activation_bytes[0] + m.cuda_graph_bytes[0]) / free * m.capacity_bytes


def test_reserve_floor_and_old_table():
    assert left_free(max_num_batched_tokens=2048) == pytest.approx(10 * GIB)
    assert left_free(version="0.4.9") == pytest.approx((9.5 + 0.5) * GIB)  # 9.5 GiB and half a GiB per GPU
    assert left_free(accepted_length=2.0) - left_free() == pytest.approx(2 * GIB)


def test_attention_dp_spreads_experts_and_dense_layers():
    p = problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=16)
    tensor, data = sparse(tp=16), sparse(tp=1, attn_dp=16, ep=16)
    by = {k: stages(p, s).causes for k, s in (("tensor", tensor), ("data", data))}
    attention = 61 * (1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168) * 15 / 16
    dense = by["data"]["weights"] - by["tensor"]["weights"]
    assert dense[0, 0] == pytest.approx(attention, rel=1e-3)  # one byte each; only attention is replicated
    m = memory(p, tensor, data)
    assert m.kv_tokens_per_instance[1] > 4 * m.kv_tokens_per_instance[0]


def test_windows_have_a_pool_of_their_own_or_keep_every_token():
    one = 16 * 128 * 2 * 2
    assert memory(problem(GEMMA3_27B, "sglang"), Strategy()).kv_bytes_per_token[0] == 62 * one
    p = problem(GEMMA3_27B, "sglang")
    pooled = evolve(p, arch=evolve(p.arch, model_type="gpt_oss"))  # one of the models with pools
    assert memory(pooled, Strategy()).kv_bytes_per_token[0] == pytest.approx((10 + 0.8 * 52) * one)


def test_layers_that_do_not_divide_go_last():
    p = problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=32)
    assert stages(p, sparse(tp=8, pp=4)).layers == (15, 15, 15, 16)


def test_draft_layers_load_with_speculation_only():
    plain = problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=8)
    drafted = problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=8, accepted_length=1.8)
    extra = weights_gib(drafted, sparse(tp=8)) - weights_gib(plain, sparse(tp=8))
    assert extra == pytest.approx(11.6 / 8 / 1.0737, rel=0.1)  # one layer of 11.6 B parameters at a byte, over 8


def test_rules():
    p = problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=16)
    assert broken(p, sparse(tp=1, attn_dp=16, ep=16)) == {}
    assert broken(p, sparse(tp=16, ep=4)) == {}  # moe_tp 4
    assert "ep or etp" in broken(
        problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=16, version="0.4.9"), sparse(tp=16, ep=4)
    )
    drafted = problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=16, accepted_length=1.8)
    assert "mean accepted length 1.8" in broken(drafted, sparse(tp=8, pp=2))["pp with speculation"]
    found = space(p)
    assert (found.ep * found.etp == found.tp * found.attn_dp).all()
    assert has(found, tp=2, attn_dp=8, ep=16)
    assert has(found, tp=16, ep=4, etp=4)
    assert np.all(found.tp * found.attn_dp * found.pp * found.dp <= 16)


def test_instances_beyond_a_node_fill_nodes():
    p = problem(DEEPSEEK_V3, "sglang", gpu="H200-SXM-141GB", n_gpus=24)
    assert "tp pp % nodes" in broken(p, sparse(tp=4, pp=3))
    assert "tp pp % nodes" not in broken(p, sparse(tp=8, pp=3))


@pytest.mark.parametrize(
    ("degrees", "legal"), [({"tp": 4}, True), ({"tp": 8}, False), ({"tp": 8, "ep": 8}, True), ({"tp": 8, "ep": 2}, True)]
)
def test_fp8_experts_need_whole_blocks(degrees, legal):
    # 1536 / 4 = 384 = 3 × 128; 1536 / 8 = 192 (an advisor once proposed it)
    p = problem(QWEN3_235B, "sglang", gpu="H200-SXM-141GB", n_gpus=8)
    assert (broken(p, sparse(**degrees)) == {}) == legal
    if legal:
        assert has(space(p), **degrees)


def test_dense_layers_are_cut_by_the_whole_group():
    # 33792 / 16 = 2112 = 16.5 blocks, with or without attention dp
    config = DEEPSEEK_V3 | {"intermediate_size": 33792}
    p = problem(config, "sglang", gpu="H200-SXM-141GB", n_gpus=16)
    assert "2112" in broken(p, sparse(tp=16))["quantised width % block"]
    assert "2112" in broken(p, sparse(tp=2, attn_dp=8, ep=16))["quantised width % block"]
    assert broken(p, sparse(tp=8, pp=2)) == {}
