"""Layouts that an engine refuses or takes, as people met them: heads, stages, quantisation blocks."""

from __future__ import annotations

from typing import Any

import pytest
from asking import ask, check
from case_models import AWQ, BASE, FP8, LLAMA_33B, QWEN3_30B_FP8, QWEN3_235B_FP8, QWEN15_32B, heads

SHORT = ("--max-length", "4096", "--batch-size", "64")


@pytest.mark.parametrize(
    ("config", "engine", "strategy", "legal"),
    [
        (heads(52, 52, 60), "vllm", "tp3", False),
        (heads(52, 52, 60), "vllm", "pp3", True),
        (heads(40, 40), "vllm", "tp6", False),
        (heads(28, 4), "vllm", "tp8", False),
        (heads(28, 4), "vllm", "tp4 dp2", True),
        (heads(32, 4), "fsdp", "tp8 dp2 zero3", False),
        (heads(32, 4), "vllm", "tp8", True),
        (heads(32, 4), "sglang", "tp8", True),
        (heads(32, 4), "trtllm", "tp8", True),
        (heads(32, 4), "megatron", "tp8 zero1", True),
        (heads(32, 2), "torchtitan", "tp4 dp2 zero3", False),
        (heads(32, 2), "torchtitan", "tp8 dp2 zero3", False),
        (heads(32, 2), "torchtitan", "tp2 dp4 zero3", True),
        ("deepseek-ai/DeepSeek-V3", "torchtitan", "tp8 dp2 zero3", True),
        ("MiniMaxAI/MiniMax-M2.5", "vllm", "tp8 etp8", False),
        ("MiniMaxAI/MiniMax-M2.5", "vllm", "tp8 ep8", True),
        ("MiniMaxAI/MiniMax-M2.5", "vllm", "tp4 dp2 etp4", True),
        (QWEN3_30B_FP8, "vllm", "tp4 etp4", False),
        (QWEN3_30B_FP8, "vllm", "tp2 etp2", True),
        (QWEN3_30B_FP8, "vllm", "tp4 ep4", True),
        (QWEN3_30B_FP8, "sglang", "tp4 etp4", False),
        (QWEN3_235B_FP8, "sglang", "tp8 etp8", False),
        (QWEN3_235B_FP8, "sglang", "tp4 etp4", True),
        (QWEN3_235B_FP8, "sglang", "tp8 ep8", True),
        (QWEN3_235B_FP8, "trtllm", "tp8 etp8", False),
        ("openai/gpt-oss-120b", "vllm", "tp8 etp8", True),  # MXFP4 experts are padded to whole blocks
        ("openai/gpt-oss-120b", "trtllm", "tp4 etp4", True),
        (BASE, "deepspeed", "pp4 dp2 zero2", False),
        (BASE, "deepspeed", "pp4 dp2 zero3", False),
        (BASE, "deepspeed", "pp4 dp2 zero1", True),
        (heads(16, 2), "megatron", "cp4 zero1", True),  # a ring passes whole heads on
        (heads(16, 2), "deepspeed", "cp4 zero3", True),  # Ulysses replicates the two
    ],
)
def test_layouts(config: dict[str, Any] | str, engine: str, strategy: str, legal: bool) -> None:
    words = SHORT if engine in {"megatron", "fsdp", "torchtitan", "deepspeed"} else ()
    n_gpus = 16 if "dp2" in strategy and "tp8" in strategy else 8
    answer = check(engine, "H200", n_gpus, strategy, *words, model=config)
    assert (answer.rules - {"world size"} == set()) == legal, answer.sentences
    if not legal:
        assert answer.code == 3
        assert answer.document["instead"], "something legal is offered"


@pytest.mark.parametrize("model", ["microsoft/Phi-3-medium-128k-instruct", "microsoft/phi-4"])
def test_forty_heads_over_ten_have_six_legal_sizes(model: str) -> None:
    legal = [tp for tp in range(1, 41) if check("vllm", "A100", 40, f"tp{tp}", "--gpus-per-node", "40", model=model).legal]
    assert legal == [t for t in (1, 2, 5, 10, 20, 40) if 17920 % t == 0]
    said = check("vllm", "A100", 4, "tp4", model=model)
    assert "10 key/value heads are neither a multiple nor a divisor of tp 4; tp 5 or 2 would do" in said.sentences


def test_three_cards_take_a_pipeline() -> None:
    """52 heads are not divisible by 3, 60 layers are."""
    words = ("--gpus-per-node", "3", "--isl", "512", "--osl", "512")
    refused = check("vllm", "V100-32GB", 3, "tp3", *words, model=LLAMA_33B)
    assert "52 query heads cannot be divided by tp 3" in refused.sentences
    assert "tp1 pp3 dp1" in refused.instead
    taken = check("vllm", "V100-32GB", 3, "pp3", *words, model=LLAMA_33B)
    assert taken.code == 0
    assert [s["layers"] for s in taken.plan["memory"]["stages"]] == [20, 20, 20]


def test_three_large_cards_take_a_pipeline_and_two_leave_little_room() -> None:
    words = ("--gpus-per-node", "3")
    model = "meta-llama/Meta-Llama-3-70B"
    refused = check("vllm", "A100", 3, "tp3", *words, model=model)
    assert "heads % tp" in refused.rules
    assert refused.document["best"]["strategy"].startswith("tp1 pp3")
    three, two = (check("vllm", "A100", 3, s, *words, model=model).plan for s in ("pp3", "tp2"))
    assert sorted(s["layers"] for s in three["memory"]["stages"]) == [26, 27, 27]
    weights = three["memory"]["stages"][1]["bytes"]
    assert sum(v for k, v in weights.items() if k.startswith("weights")) == pytest.approx(47e9, rel=0.03)
    assert two["serving"]["kv_tokens_per_instance"] < 0.2 * three["serving"]["kv_tokens_per_instance"]


def test_six_small_cards_hold_three_copies_of_an_int4_checkpoint() -> None:
    """40 heads over six cards do not go; pairs do, and only four-bit weights fit two 16 GB cards."""
    words = ("--gpus-per-node", "6")
    refused = check("vllm", "T4", 6, "tp6", *words, model=QWEN15_32B | {"quantization_config": AWQ})
    assert "heads % tp" in refused.rules
    fitting = {i["strategy"] for i in refused.document["instead"] if i["verdict"] != "does not fit"}
    assert "tp2 pp1 dp3 mbs1" in fitting
    assert check("vllm", "T4", 6, "tp2 dp3", *words, model=QWEN15_32B).document["status"] == "does not fit"


@pytest.mark.parametrize(("strategy", "legal"), [("tp16 ep16", False), ("tp8 pp2 ep8", True)])
def test_a_dense_width_of_sixteen_and_a_half_blocks(strategy: str, legal: bool) -> None:
    """The leading dense layers of a MoE model are cut by tp whatever expert parallelism does: 33792 / 16 = 16.5 × 128."""
    model = QWEN3_235B_FP8 | {"intermediate_size": 33792, "mlp_only_layers": [0], "num_attention_heads": 64}
    answer = check("sglang", "H20", 16, strategy, model=model)
    assert answer.legal == legal
    if not legal:
        assert "of width 33792 over tp give 2112 on each of 16 ranks" in answer.sentences


@pytest.mark.parametrize(("strategy", "legal"), [("tp4 ep4", False), ("tp2 ep2", True)])
def test_a_shared_expert_has_a_width_of_its_own(strategy: str, legal: bool) -> None:
    model = BASE | {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "moe_intermediate_size": 2048, "num_experts": 64,
        "num_experts_per_tok": 4, "shared_expert_intermediate_size": 1280, "quantization_config": FP8,
    }  # fmt: skip
    answer = check("sglang", "H100", 4, strategy, model=model)
    assert answer.legal == legal
    if not legal:
        assert "shared" in answer.sentences
        assert "of width 1280 over tp give 320 on each of 4 ranks" in answer.sentences


@pytest.mark.parametrize(("strategy", "legal"), [("tp8 etp8", False), ("tp4 dp2 etp4", True), ("tp8 ep8", True)])
def test_four_bit_groups_of_sixteen(strategy: str, legal: bool) -> None:
    """1856 / 8 = 232 is fourteen and a half groups; 464 is twenty-nine."""
    scheme = {
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}
    }
    model = QWEN3_30B_FP8 | {
        "moe_intermediate_size": 1856,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], **scheme},
    }
    answer = check("vllm", "H100", 8, strategy, model=model)
    assert answer.legal == legal, answer.sentences
    if not legal:
        assert "1856 over etp gives 232 on each of 8 ranks, not a multiple of the nvfp4 block 16" in answer.sentences


@pytest.mark.parametrize(
    ("engine", "strategy", "legal"),
    [
        ("vllm", "tp32 ep32", False),
        ("vllm", "tp16 ep16 dp2", False),
        ("vllm", "tp8 attn_dp4 ep32", True),
        ("sglang", "tp16 dp2 ep16", False),
    ],
)
def test_eight_state_space_groups(engine: str, strategy: str, legal: bool) -> None:
    answer = check(engine, "H100", 32, strategy, model="nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B")
    assert ("mamba groups % tp" not in answer.rules) == legal, answer.sentences
    if not legal:
        assert "8 Mamba groups cannot be divided by tp" in answer.sentences


@pytest.mark.parametrize(
    ("precision", "tokens", "legal"),
    [("mxfp8", 31936, False), ("mxfp8", 31872 + 128, True), ("fp8", 31936, True), ("fp8", 31928, False)],
)
def test_packed_rows_per_rank_are_whole_blocks(precision: str, tokens: int, legal: bool) -> None:
    """Rows of a rank are tokens / tp: a multiple of 32 for MXFP8, of 16 for other FP8."""
    words = ("--precision", precision, "--max-length", str(tokens), "--batch-size", "8")
    answer = check("megatron", "B200", 8, "tp4 dp2 zero1", *words, model="Qwen/Qwen3-8B")
    assert answer.legal == legal, answer.sentences
    if not legal:
        assert answer.rules == {"rows % alignment"}
        assert f"gives {tokens / 4:g} rows per rank" in answer.sentences


@pytest.mark.parametrize(
    ("engine", "n_gpus", "model"),
    [("vllm", 3, "google/gemma-3-27b-it"), ("sglang", 6, "google/gemma-3-27b-it"), ("sglang", 8, QWEN3_235B_FP8),
     ("vllm", 8, QWEN3_235B_FP8)],
)  # fmt: skip
def test_whatever_the_search_offers_passes_its_own_check(engine: str, n_gpus: int, model: dict[str, Any] | str) -> None:
    words = (
        "--mode",
        "inference",
        "--engine",
        engine,
        "--gpu-type",
        "H200",
        "--n-gpus",
        str(n_gpus),
        "--gpus-per-node",
        str(n_gpus),
    )
    found = ask(*words, "--top", "200", model=model)
    assert found.document["strategies"]
    for plan in found.document["strategies"]:
        axes = plan["axes"]
        assert 32 % axes["tp"] == 0
        if model is QWEN3_235B_FP8:
            assert 1536 // axes["etp"] % 128 == 0
        assert check(engine, "H200", n_gpus, plan["strategy"], "--gpus-per-node", str(n_gpus), model=model).legal


def test_the_stage_that_lacks_most_is_named() -> None:
    """Sixteen layers with experts need more than the first fifteen, three of which have none."""
    answer = check("vllm", "H200", 4, "pp4", model="deepseek-ai/DeepSeek-V3")
    assert [s["layers"] for s in answer.plan["memory"]["stages"]] == [15, 15, 16, 15]
    assert answer.document["shortfalls"][0].startswith("stage 2 (16 layers) needs")
