"""The catalogue: complete, known in every field, and as large as published."""

import pytest

from autoparallel_catalogue import expand
from autoparallel_core.host import host
from autoparallel_core.models import load_model
from autoparallel_core.ops.params import kv_bytes_per_token, parameter_counts, state_bytes_per_sequence, weight_bytes
from autoparallel_core.reading.report import formats

FACTS = expand.facts()


def test_it_is_large_and_current():
    assert len(FACTS) >= 120
    for part in ("Llama-3.3", "Llama-4", "Qwen3.5", "DeepSeek-V4", "GLM-5", "Kimi-K2.5", "gpt-oss", "gemma-3", "MiniMax-M2.5",
                 "Nemotron-3", "Mixtral", "phi-4"):  # fmt: skip
        assert any(part.casefold() in name.casefold() for name in FACTS), part


@pytest.mark.parametrize("name", FACTS)
def test_published_size_and_no_field_unread(name):
    arch = load_model(name, host())
    assert parameter_counts(arch)["text"] / 1e9 == pytest.approx(FACTS[name]["about"], rel=6e-3)
    assert arch.unknown_fields == ()
    assert not [n for n in arch.notes if "assumed" in n or "no plugin" in n], arch.notes
    assert arch.max_position_embeddings == FACTS[name]["context"]


@pytest.mark.parametrize(
    ("name", "like", "kinds"),
    [
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B", {"bf16"}),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen/Qwen3-235B-A22B", {"fp8_block128", "bf16"}),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "meta-llama/Llama-3.1-70B", {"fp8", "bf16"}),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "meta-llama/Llama-3.3-70B-Instruct", {"fp8", "bf16"}),
        ("Qwen/Qwen2.5-32B-Instruct-AWQ", "Qwen/Qwen2.5-32B-Instruct", {"int4_g128z", "bf16"}),
    ],
)
def test_further_names_are_the_same_model_stored_as_they_say(name, like, kinds):
    arch, first = load_model(name, host()), load_model(like, host())
    assert parameter_counts(arch) == parameter_counts(first)
    assert set(formats(arch)) == kinds
    assert FACTS[name]["vocab"] == FACTS[like]["vocab"]


@pytest.mark.parametrize(
    ("name", "published_billions"),
    [("Qwen/Qwen3-235B-A22B", 22), ("Qwen/Qwen3-30B-A3B", 3.3), ("deepseek-ai/DeepSeek-V3", 37.5), ("openai/gpt-oss-120b", 5.7),
     ("openai/gpt-oss-20b", 4.2), ("moonshotai/Kimi-K2-Instruct", 32.9), ("mistralai/Mixtral-8x7B-Instruct-v0.1", 12.9),
     ("zai-org/GLM-4.5-Air", 13), ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 35)],
)  # fmt: skip
def test_published_active_parameters(name, published_billions):
    assert parameter_counts(load_model(name, host()))["active"] / 1e9 == pytest.approx(published_billions, rel=0.06)


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("meta-llama/Llama-3.1-70B", 2 * 80 * 8 * 128),
        ("meta-llama/Llama-3.1-405B", 2 * 126 * 8 * 128),
        ("deepseek-ai/DeepSeek-V3", 61 * 576),
        ("deepseek-ai/DeepSeek-V3.2", 61 * (576 + 128)),
        ("zai-org/GLM-5", 78 * (576 + 128)),
        ("openai/gpt-oss-120b", 2 * 36 * 8 * 64),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2 * 12 * 2 * 256),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", 2 * 6 * 2 * 128),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 2 * 49 * 8 * 128),
        ("google/gemma-4-26B-A4B", 25 * 2 * 8 * 256 + 5 * 2 * 2 * 512),
    ],
)
def test_cache_elements_per_token(name, elements):
    arch = load_model(name, host())
    if "V3.2" in name or "GLM" in name:  # index keys have a dtype of their own
        assert elements <= kv_bytes_per_token(arch, 2) <= 2 * elements
    else:
        assert kv_bytes_per_token(arch, 2) == 2 * elements


def test_recurrent_state_of_a_hybrid():
    """Qwen3-Next: 36 layers keep 32 heads of 128 × 128 in fp32 and a convolution of 3 × 8192 elements."""
    state = state_bytes_per_sequence(load_model("Qwen/Qwen3-Next-80B-A3B-Instruct", host()), 2)
    assert state == 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)


def test_released_storage():
    """gpt-oss-120b: 65.2 GB; DeepSeek-V3: 1 byte per linear weight and a scale per tile; Kimi-K2.5: 4-bit experts only."""
    oss = load_model("openai/gpt-oss-120b", host())
    assert weight_bytes(oss) / 1e9 == pytest.approx(65.25, rel=1e-3)
    v3 = load_model("deepseek-ai/DeepSeek-V3", host())
    assert set(formats(v3)) == {"bf16", "fp8_block128"}
    kimi = load_model("moonshotai/Kimi-K2.5", host())
    assert formats(kimi)["int4_g32"] == 60 * 384 * 3 * 7168 * 2048


def test_repeats():
    assert expand._repeated("0x2 4,128x2 4 0") == ["0", "0", "4", "128", "4", "128", "4", "0"]


def test_an_unknown_fact_is_refused():
    with pytest.raises(ValueError, match="colour"):
        expand.expand({"type": "llama", "layers": 1, "colour": "red"})
