"""What serving engines hold in memory: weights, cache tokens, state, sampler; and what they refuse to start with."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Answer, ask, check
from case_models import AWQ, BASE, FP8

from autoparallel_core.host import host

GIB = float(1 << 30)
R1_DISTILL_14B = BASE | {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 48, "num_key_value_heads": 8,
    "vocab_size": 152064, "max_position_embeddings": 131072,
}  # fmt: skip


def known(name: str, **changes: Any) -> dict[str, Any]:
    """The config of a model of the catalogue, with changes."""
    return dict(host().catalogue()[name]) | changes


def serve(command: str, gpu: str, *words: str, model: str | dict[str, Any]) -> Answer:
    return ask("check", "--gpu-type", gpu, *words, model=model, files={"serve.sh": f"{command}\n"})


def weights(answer: Answer) -> float:
    return sum(v for k, v in answer.stage().items() if k.startswith("weights"))


@pytest.mark.parametrize(
    ("gpu", "n_gpus", "fits"), [("H800", 8, False), ("H100", 8, False), ("H200", 8, True), ("H20", 8, True), ("H100", 16, True)]
)
def test_671_billion_bytes_need_more_than_eight_cards_of_80(gpu: str, n_gpus: int, fits: bool) -> None:
    answer = check("vllm", gpu, n_gpus, f"tp{n_gpus} etp{n_gpus}", model="deepseek-ai/DeepSeek-V3")
    assert (answer.document["status"] == "ok") == fits
    assert n_gpus * weights(answer) > 671e9
    if not fits:
        assert weights(answer) == pytest.approx(84e9, rel=0.05)


def test_the_longest_request_of_two_consumer_cards() -> None:
    """14 GiB of weights and 8.7 GiB of cache each: the advertised 131,072 tokens do not start, and the answer says what does."""
    command = "vllm serve model --tensor-parallel-size 2 --gpu-memory-utilization 0.98 --max-model-len 131072"
    answer = serve(command, "RTX-4090", "--engine-version", "0.7.2", model=R1_DISTILL_14B)
    assert answer.code == 3
    assert weights(answer) / GIB == pytest.approx(13.95, rel=0.02)
    assert answer.stage()["kv_cache"] / GIB == pytest.approx(8.69, rel=0.05)
    held = answer.plan["serving"]["kv_tokens_per_instance"]
    assert any(f"room for {held:,}; limit requests to that" in s for s in answer.document["shortfalls"])
    shorter = command.replace("131072", "81536")
    assert serve(shorter, "RTX-4090", "--engine-version", "0.7.2", model=R1_DISTILL_14B).code == 0


def test_a_quantised_checkpoint_is_counted_as_stored() -> None:
    """70 billion parameters in 8 bit on one card: 67.7 GiB of weights leave 53.2 GiB, 174 thousand tokens."""
    scheme = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": scheme | {"strategy": "channel"},
        "input_activations": scheme | {"strategy": "token"},
    }
    config = known(
        "meta-llama/Llama-3.3-70B-Instruct",
        quantization_config={
            "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "config_groups": {"g": group},
        },
    )  # fmt: skip
    answer = check("vllm", "H200", 1, "tp1", "--memory-fraction", "0.9", "--engine-version", "0.11.0", model=config)
    assert weights(answer) / GIB == pytest.approx(67.72, rel=0.01)
    assert answer.plan["serving"]["kv_tokens_per_instance"] == pytest.approx(174336, rel=0.02)


def test_a_nested_config_is_descended_into() -> None:
    """A multimodal wrapper states no heads of its own."""
    text = {k: v for k, v in known("mistralai/Mistral-Small-24B-Instruct-2501").items() if k != "architectures"}
    whole = {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    answer = check("vllm", "H100", 2, "tp2", model=whole)
    assert answer.code == 0
    assert answer.document["model"]["num_heads"] == 32
    assert answer.document["model"]["parameters"]["text"] == pytest.approx(23.57e9, rel=0.01)


def test_half_a_terabyte_in_8_bit_takes_one_node_of_large_cards() -> None:
    config = known(
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B",
        quantization_config={"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    )
    words = ("--mode", "inference", "--engine", "vllm", "--engine-version", "0.24.0", "--gpu-type", "H200", "--n-gpus", "88")
    answer = ask(*words, "--find-min-nodes", model=config)
    assert answer.document["min_nodes"]["n_nodes"] == 1
    assert check("vllm", "H200", 8, "tp8 ep8", "--engine-version", "0.24.0", model=config).code == 0


def test_only_full_attention_keeps_every_token() -> None:
    """16 of 64 layers keep keys and values: 16 GiB at 262,144 tokens; the other 48 keep a constant state."""
    model = "Qwen/Qwen3.6-27B"
    facts = check("vllm", "H200", 1, "tp1", model=model).document["model"]
    assert facts["kv_cache"]["bytes_per_token"] * 262144 == 16384 * (1 << 20)
    # four sequences' states were 598.5 MiB
    assert 4 * facts["state_bytes_per_sequence"] == pytest.approx(598.5 * (1 << 20), rel=0.03)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_tensor_parallelism_does_not_shrink_a_latent_cache(engine: str) -> None:
    """One latent per token and layer, whole on every rank: (512 + 64) × 2 bytes × 61; attention over dp splits requests."""
    per_token = {}
    for tp in (4, 8):
        figures = check(engine, "B300", 8, f"tp{tp} dp{8 // tp} ep{tp}", model="deepseek-ai/DeepSeek-V3").plan["serving"]
        per_token[tp] = figures["kv_bytes_per_gpu"] / figures["kv_tokens_per_instance"]
    assert per_token[4] == pytest.approx(per_token[8], rel=0.02)
    assert per_token[8] == pytest.approx((512 + 64) * 2 * 61, rel=0.03)


def test_the_samplers_buffers_are_counted() -> None:
    """The warm-up samples max_num_seqs sequences over the whole vocabulary, in 32 bit and in copies."""
    command = "vllm serve zai-org/GLM-4.7-Flash --tensor-parallel-size 2 --max-model-len 8192 --max-num-seqs"
    config = known("zai-org/GLM-4.7-Flash", quantization_config=FP8)
    held = {
        n: sum(
            v
            for k, v in serve(f"{command} {n}", "RTX-4090", "--engine-version", "0.14.0", model=config).stage().items()
            if "sampler" in k
        )
        for n in (256, 128)
    }
    assert held[256] >= 2 * 256 * 154880 * 4
    assert held[256] - held[128] >= 2 * 128 * 154880 * 4


@pytest.mark.parametrize("model", ["nobody/no-such-model", {}, {"hidden_size": 4096}])
def test_a_model_that_cannot_be_read_ends_the_command(model: str | dict[str, Any]) -> None:
    answer = ask("--mode", "inference", "--gpu-type", "H100", model=model)
    assert answer.code == 2
    assert answer.document == {}
    assert len(answer.err.splitlines()) == 1


def test_formats_without_measurements_are_estimated_and_marked() -> None:
    """Nobody measured MXFP4 experts here; the answer comes from figures of the data sheet and says so."""
    words = ("--engine", "vllm", "--gpu-type", "H200", "--n-gpus", "16", "--mode", "inference", "--no-profile")
    best = ask(*words, model="openai/gpt-oss-120b")
    assert best.code == 0
    strategy = best.document["strategies"][0]["strategy"]
    explained = ask("explain", *words, "--strategy", strategy, "--sources", model="openai/gpt-oss-120b")
    assert set(explained.document["sources"]["time_s"]) <= {"preset", "assumed"}
    assert explained.document["sources"]["time_s"]["preset"] > 0


def test_four_bit_weights_make_room_on_small_cards() -> None:
    config = known("Qwen/Qwen3.6-27B")["text_config"]
    words = ("--gpus-per-node", "2", "--isl", "512", "--osl", "512")
    assert check("vllm", "RTX-3090", 2, "tp2", *words, model=config).document["status"] == "does not fit"
    assert check("vllm", "RTX-3090", 2, "tp2", *words, model=config | {"quantization_config": AWQ}).document["status"] == "ok"
