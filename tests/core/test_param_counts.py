"""Parameter counts of real configs equal those of the reference library, to the last one.

Facts of its own stand here; a folder of real configs beside the checkout (``shared/``) is read too when there is one.
"""

import json
from pathlib import Path

import pytest

from autoparallel_core.host import host
from autoparallel_core.models import load_model
from autoparallel_core.ops.params import parameter_counts

COUNTED = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 400_711_848_960,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46_702_792_704,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 79_674_391_296,
    "Qwen/Qwen3.5-397B-A17B": 396_346_350_336,
    "deepseek-ai/DeepSeek-V2-Lite-Chat": 15_706_484_224,
    "deepseek-ai/DeepSeek-V3": 671_026_404_352,
    "deepseek-ai/DeepSeek-V3.2": 671_877_929_216,
    "deepseek-ai/DeepSeek-V4-Flash": 284_332_230_231,
    "zai-org/GLM-5": 743_911_199_232,
    "zai-org/GLM-5.2": 743_377_000_704,
    "zai-org/GLM-4.7-Flash": 29_943_390_976,
    "openai/gpt-oss-120b": 116_829_156_672,
    "google/gemma-2-27b-it": 27_227_128_320,
    "google/gemma-4-26B-A4B": 25_233_141_760,
    "MiniMaxAI/MiniMax-M2.5": 228_689_748_992,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B": 31_577_937_344,
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B": 549_308_968_960,
    "ai21labs/Jamba-v0.1": 51_570_323_328,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "microsoft/phi-4": 14_659_507_200,
}
"""Text parameters as the reference library builds them without weights."""

SHARED = Path(__file__).resolve().parents[3] / "shared"

KNOWN_DIFFERENCES = {
    "stepfun-ai--Step-3.7-Flash": "the reference takes its class default 128815 for the file's vocab_size 128896: 2 · 81 · 4096",
}
"""Configs whose file and reference disagree, with the reason; ours follows the file."""


@pytest.mark.parametrize("name", COUNTED)
def test_catalogue(name):
    assert parameter_counts(load_model(name, host()))["text"] == COUNTED[name]


def expected_counts():
    path = SHARED / "cases" / "param_counts.json"
    if not path.is_file():
        return {}
    return {k: v for k, v in json.loads(path.read_text()).items() if not k.startswith("_")}


@pytest.mark.skipif(not expected_counts(), reason="no folder of real configs beside the checkout")
def test_real_configs():
    wrong = {}
    for name, expected in expected_counts().items():
        ours = parameter_counts(load_model(str(SHARED / "configs" / f"{name}.json"), host()))
        if ours["text"] != expected["text"]:
            wrong[name] = ours["text"] - expected["text"]
            assert abs(wrong[name]) / expected["text"] < 1e-3
        if expected["vision"]:  # 0 also where the reference built the language model alone
            assert ours["vision"] == expected["vision"], name
    assert set(wrong) <= set(KNOWN_DIFFERENCES), wrong
    assert wrong.get("stepfun-ai--Step-3.7-Flash", 2 * 81 * 4096) == 2 * 81 * 4096
