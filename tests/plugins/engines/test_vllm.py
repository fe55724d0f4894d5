"""vLLM: published start-up figures to the hundredth of a GiB, the version history of its budget, and its rules."""

from __future__ import annotations

import pytest
from serving_models import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GEMMA3_27B,
    GIB,
    H100_BYTES,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    QWEN3_235B,
    broken,
    has,
    logged,
    memory,
    problem,
    space,
    sparse,
    stages,
    weights_gib,
)

from autoparallel_core.spec.strategy import Strategy
from autoparallel_core.testing.conformance import *  # noqa: F403

PLUGINS = ["vllm"]

ONE = Strategy()


@pytest.mark.parametrize(
    ("config", "degrees", "weights", "kv_gib", "tokens"),
    [
        (LLAMA_8B, {}, 14.99, 58.11, 476016),
        (LLAMA_8B, {"tp": 2}, 7.51, 63.76, 1044688),
        (LLAMA_8B, {"tp": 4}, 3.77, 67.44, 2209792),
        (DEEPSEEK_V2_LITE, {}, 29.43, 43.61, 1505552),
        (MIXTRAL, {"tp": 2}, 43.51, 28.44, 465936),
    ],
)
def test_published_startups_of_0_19(config, degrees, weights, kv_gib, tokens):
    # github.com/llm-d-incubation/llm-d-planner, accuracy report of vLLM 0.19.0 on H100 80 GB
    p = logged(config, n_gpus=degrees.get("tp", 1))
    s = Strategy(**degrees)
    assert weights_gib(p, s) == pytest.approx(weights, rel=2e-3)
    m = memory(p, s)
    assert m.kv_cache_bytes[0] / GIB == pytest.approx(kv_gib, rel=2e-3)
    assert m.kv_tokens[0] == pytest.approx(tokens, rel=2e-3)
    assert m.kv_tokens[0] % 16 == 0


def test_fp8_cache_holds_twice_the_tokens():
    tokens = memory(logged(LLAMA_8B, kv_dtype="fp8"), ONE).kv_tokens[0]
    assert tokens == pytest.approx(952032, rel=1e-3)
    assert tokens == pytest.approx(2 * memory(logged(LLAMA_8B), ONE).kv_tokens[0], abs=32)


def test_quantised_while_loading():
    # matrices at one byte, tables and head at two: 8.49 GiB in the same report
    assert weights_gib(logged(LLAMA_8B, precision="fp8"), ONE) == pytest.approx(8.49, abs=0.01)
    assert weights_gib(logged(LLAMA_8B, settings=(("weights", "int4_g128"),)), ONE) == pytest.approx(5.38, rel=0.01)
    assert weights_gib(logged(LLAMA_8B, precision="fp32"), ONE) == pytest.approx(29.98, abs=0.01)


def test_pipeline_stages_differ_and_the_tightest_decides():
    p, s = logged(LLAMA_8B, n_gpus=4), Strategy(pp=4)
    st = stages(p, s)
    assert st.layers == (8, 8, 8, 8)
    w = st.kind("weights")[0] / GIB
    assert w[0] == pytest.approx(4.26, abs=0.01)  # with the embedding
    assert w[0] - w[1] == pytest.approx(128256 * 4096 * 2 / GIB, abs=1e-3)
    m = memory(p, s)
    assert m.deciding_stage[0] == 3  # head and sampler
    assert m.kv_tokens[0] == pytest.approx(2257264, rel=3e-3)


def test_uneven_layers_go_to_the_middle():
    p = problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=32)
    assert stages(p, Strategy(tp=8, pp=4)).layers == (15, 15, 16, 15)
    old = problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=32, version="0.7.2")
    assert stages(old, Strategy(tp=8, pp=4)).layers == (15, 15, 15, 16)


def test_sampler_warm_up_shrank_in_0_17():
    # Qwen3-14B moved by 3.4 GiB between 0.16 and 0.17; the term scales with the vocabulary (151936 there)
    config = LLAMA_8B | {"vocab_size": 151936}
    older, newer = (memory(logged(config, version=v), ONE) for v in ("0.16.0", "0.17.0"))
    assert (newer.kv_cache_bytes[0] - older.kv_cache_bytes[0]) / GIB == pytest.approx(3.4, abs=0.1)


def test_first_generation_profiles_a_whole_prompt():
    # V0 on a T4: 2.02 GiB for 32,768 tokens at once (Qwen2.5-1.5B); contexts beyond that prefill 2,048 at a time
    config = LLAMA_8B | {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2,
                         "num_hidden_layers": 28, "vocab_size": 151936}  # fmt: skip
    whole = problem(config, "vllm", gpu="T4-16GB", version="0.7.0", max_model_len=32768, isl=64, osl=64)
    chunked = problem(config, "vllm", gpu="T4-16GB", version="0.7.0", max_model_len=65536, isl=64, osl=64)
    assert memory(whole, ONE).activation_bytes[0] / GIB == pytest.approx(2.02, abs=0.01)
    assert memory(chunked, ONE).activation_bytes[0] == memory(whole, ONE).activation_bytes[0] / 16


def test_window_layers_share_pages_in_groups():
    # 10 full and 52 window layers: groups of 10, 70 layers' worth of pages per token
    m = memory(logged(GEMMA3_27B), ONE)
    assert m.kv_bytes_per_token[0] == 70 * 16 * 128 * 2 * 2
    # one sequence of 32,768 tokens: 10 layers keep it all, the six window groups 1,024 and a page
    full, window = 10 * 32768, 60 * (1024 + 16)
    assert m.sequence_bytes(32768.0)[0] == (full + window) * 16 * 128 * 2 * 2


def test_defaults_by_version_and_gpu():
    old, new = (problem(LLAMA_8B, "vllm", version=v, device_memory_bytes=H100_BYTES) for v in ("0.19.0", "0.33.0"))
    at = {v: memory(p, ONE) for v, p in (("old", old), ("new", new))}
    freed = at["new"].kv_cache_bytes[0] - at["old"].kv_cache_bytes[0]
    assert freed == pytest.approx(0.02 * H100_BYTES - at["new"].cuda_graph_bytes[0], rel=1e-6)  # 0.92, graphs counted
    assert at["old"].cuda_graph_bytes[0] == 0
    a100 = memory(problem(LLAMA_8B, "vllm", version="0.19.0", gpu="A100-SXM-80GB"), ONE)
    assert a100.activation_bytes[0] < at["old"].activation_bytes[0]  # 256 sequences of 2,048 tokens instead of 1,024 and 8,192


def test_what_fits_where():
    tp8 = sparse(tp=8)
    h200 = problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=8)
    assert memory(h200, tp8).fits[0]
    bf16 = problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=8, precision="bf16")
    assert not memory(bf16, tp8).fits[0]
    assert memory(bf16, tp8).kv_cache_bytes[0] < 0
    h100 = problem(DEEPSEEK_V3, "vllm", n_gpus=8)
    assert not memory(h100, tp8).fits[0]
    assert memory(h100, tp8).max_concurrency[0] == 0


def test_latent_cache_is_whole_on_every_rank():
    p = problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=8)
    assert memory(p, sparse(tp=8)).kv_bytes_per_token[0] == 61 * 576 * 2
    spread = problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=16)
    m = memory(spread, sparse(tp=1, attn_dp=16, ep=16), sparse(tp=16))
    assert m.kv_tokens_per_instance[0] > 4 * m.kv_tokens_per_instance[1]
    assert m.weights_bytes[0] > m.weights_bytes[1]  # attention is replicated


def test_rules_name_their_numbers():
    p = problem(LLAMA_8B, "vllm", n_gpus=32)
    assert broken(p, Strategy(tp=8)) == {}
    assert broken(p, Strategy(tp=16)) == {}  # 8 key/value heads on 16 ranks: replicated
    seven = broken(p, Strategy(tp=7))
    assert "32 query heads cannot be divided by tp 7" in seven["heads % tp"]
    assert "8 key/value heads" in seven["kv heads vs tp"]
    assert "attention dp 2" in broken(p, Strategy(tp=8, attn_dp=2))["attention dp needs experts"]
    assert "tp 8 × pp 8 × dp 1 = 64 GPUs, but the cluster has 32" in broken(p, Strategy(tp=8, pp=8))["instances ≤ GPUs"]


def test_experts_are_sharded_one_way_only():
    p = problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=16)
    assert "ep etp = tp attn_dp" in broken(p, sparse(tp=8, attn_dp=2, ep=4))
    assert broken(p, sparse(tp=8, attn_dp=2, ep=16)) == {}
    found = space(p)
    assert ((found.ep == 1) | (found.etp == 1)).all()
    assert has(found, tp=1, attn_dp=16, ep=16)
    assert "no ep before 0.8" in broken(
        problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=16, version="0.7.2"), sparse(tp=8, ep=8)
    )


def test_quantisation_blocks_are_not_cut():
    # 18432 / 16 = 1152 = 9 × 128, but 2048 / 32 = 64
    p = problem(DEEPSEEK_V3, "vllm", gpu="H200-SXM-141GB", n_gpus=32)
    assert broken(p, sparse(tp=16)) == {}
    assert "fp8_block128 block 128" in broken(p, sparse(tp=32))["quantised width % block"]
    awq = problem(LLAMA_70B, "vllm", n_gpus=64, settings=(("weights", "int4_g128z"),))
    assert broken(awq, Strategy(tp=8)) == {}
    assert broken(awq, Strategy(tp=32)) == {}  # 28672 / 32 = 896 = 7 × 128
    assert "gives 448 on each of 64 ranks" in broken(awq, Strategy(tp=64))["asked precision % block"]


def test_legal_tensor_parallel_sizes_of_forty_heads_over_ten():
    # Phi-3-medium and Phi-4: 40 query and 10 key/value heads (vLLM issues 5003 and kin)
    config = LLAMA_8B | {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10, "intermediate_size": 17920}
    p = problem(config, "vllm", n_gpus=40)
    heads = {"heads % tp", "kv heads vs tp"}
    assert [t for t in range(1, 41) if not heads & broken(p, Strategy(tp=t)).keys()] == [1, 2, 5, 10, 20, 40]
    assert "tp 5 or 2 would do" in broken(p, Strategy(tp=4))["kv heads vs tp"]


@pytest.mark.parametrize(("width", "legal"), [(1536, {1, 2, 4}), (768, {1, 2})])
def test_fp8_experts_need_whole_blocks_or_expert_parallelism(width, legal):
    # Qwen3-235B and MiniMax-M2.5 (1536), Qwen3-30B (768): 1536 / 8 = 192 is no multiple of 128
    config = QWEN3_235B | {"moe_intermediate_size": width}
    p = problem(config, "vllm", gpu="H200-SXM-141GB", n_gpus=8)
    assert {t for t in (1, 2, 4, 8) if not broken(p, sparse(tp=t))} == legal
    assert broken(p, sparse(tp=8, ep=8)) == {}


def test_shared_experts_have_a_width_of_their_own():
    config = DEEPSEEK_V3 | {"moe_intermediate_size": 1280, "intermediate_size": 10240}
    p = problem(config, "vllm", gpu="H200-SXM-141GB", n_gpus=4)
    assert "shared_experts" in broken(p, sparse(tp=4, ep=4))["quantised width % block"]  # 1280 / 4 = 320


def test_remainders_of_three_stages():
    p = problem(LLAMA_70B, "vllm", gpu="A100-SXM-80GB", n_gpus=3)
    assert "heads % tp" in broken(p, Strategy(tp=3))
    assert broken(p, Strategy(pp=3)) == {}
    assert stages(p, Strategy(pp=3)).layers == (27, 27, 26)
    assert memory(p, Strategy(pp=3)).fits[0]
    assert weights_gib(p, Strategy(pp=3)) == pytest.approx(47e9 / GIB, rel=0.05)


def test_checkpoint_in_fp8_on_one_h200():
    # llm-d issue: Llama-3.3-70B FP8-dynamic, utilisation 0.9: 53.2 GiB of cache, 174,336 tokens
    config = LLAMA_70B | {"quantization_config": {"quant_method": "fp8"}}
    p = problem(config, "vllm", gpu="H200-SXM-141GB", version="0.11.0", memory_fraction=0.9)
    assert memory(p, Strategy()).kv_tokens[0] == pytest.approx(174336, rel=0.02)


def test_longest_context_of_two_consumer_cards():
    # a 14B model in 16 bit on two RTX 4090 at 0.98: 13.95 GiB of weights and 8.69 GiB of cache each, too little for 131,072
    config = LLAMA_8B | {
        "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "intermediate_size": 13824, "vocab_size": 152064,
    }  # fmt: skip
    p = problem(config, "vllm", gpu="RTX-4090-24GB", n_gpus=2, version="0.7.0", memory_fraction=0.98, max_model_len=131072)
    m = memory(p, Strategy(tp=2))
    assert m.weights_bytes[0] / GIB == pytest.approx(13.95, rel=0.02)
    assert m.kv_cache_bytes[0] / GIB == pytest.approx(8.69, rel=0.05)
    assert m.longest_context(1)[0] == m.kv_cache_bytes[0] // (16 * 48 * 4 * 128 * 2 * 2) * 16
    assert m.concurrency_at(131072.0)[0] == 0
