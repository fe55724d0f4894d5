"""Published step times as known answers."""

from __future__ import annotations

import pytest
from problem_builders import deepseek_v3, llama_405b
from training_builders import price, problem, strategy

import autoparallel_core as ap
from autoparallel_core.models import build_arch
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

KORTHIKANTI = [
    # hidden, heads, layers, tp, pp, vpp, global batch, micro-batch, seconds with full recompute, with SP and selective
    (6144, 64, 48, 8, 1, 1, 4, 4, 1.42, 1.10),
    (12288, 96, 96, 8, 8, 3, 64, 1, 18.13, 13.75),
    (20480, 128, 105, 8, 35, 3, 280, 1, 49.05, 37.83),
    (25600, 160, 128, 8, 64, 1, 512, 1, 94.42, 71.49),
]
"""Korthikanti et al., arXiv 2205.05198, tables 3 and 5: 22B, 175B, 530B and 1T on A100, 2,048 tokens, fp16."""


def gpt(hidden: int, heads: int, layers: int) -> ap.ModelArch:
    config = {
        "model_type": "gpt_ungated", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "head_dim": hidden // heads, "intermediate_size": 4 * hidden, "vocab_size": 51200,
        "tie_word_embeddings": True, "gated_mlp": False,
    }  # fmt: skip
    return build_arch(config, name="gpt", host=ap.host())


@pytest.mark.parametrize("row", KORTHIKANTI, ids=["22B", "175B", "530B", "1T"])
def test_sequence_parallelism_and_selective_recompute(row):
    hidden, heads, layers, tp, pp, vpp, batch, mbs, full_s, selective_s = row
    p = problem(
        gpt(hidden, heads, layers), gpu="A100-SXM-80GB", n_gpus=tp * pp, seq_len=2048, batch=batch, precision="fp16",
        attention_kernel="unfused", elementwise="unfused", dp_overlap=False,
    )  # fmt: skip
    full = Strategy(tp=tp, pp=pp, vpp=vpp, mbs=mbs, sp=0, recompute=2)
    selective = Strategy(tp=tp, pp=pp, vpp=vpp, mbs=mbs, sp=1, recompute=1)
    seconds = evaluate(p, StrategyBatch.of([full, selective])).total_s
    assert seconds[0] == pytest.approx(full_s, rel=0.08)
    assert seconds[1] == pytest.approx(selective_s, rel=0.08)


@pytest.mark.parametrize(
    ("text", "precision", "measured_s"),
    [
        ("tp4 pp16 vpp4 dp4 zero1 mbs1", "fp8", 57.6),
        ("tp4 pp16 vpp8 dp4 zero1 mbs1", "mxfp8", 62.8),
    ],
)
def test_llama_405b_on_256_gb200(text, precision, measured_s):
    """Megatron-Bridge performance summary 26.04 to 26.06: 1,536 sequences of 8,192 tokens."""
    p = problem(llama_405b(), gpu="GB200", n_gpus=256, seq_len=8192, batch=1536, precision=precision, grad_dtype="bf16")
    assert price(p, text).total_s[0] == pytest.approx(measured_s, rel=0.1)


def test_deepseek_v3_on_1024_h100():
    """Megatron-Bridge performance summary 25.09: 25.3 s for 8,192 sequences of 4,096 tokens in FP8.

    The recipe dispatches with DeepEP and pairs micro-batches to hide the exchange; the multi-token layer is left out here.
    """
    p = problem(
        deepseek_v3(), n_gpus=1024, batch=8192, precision="fp8", dispatcher="deepep", ep_overlap=True, grad_dtype="bf16"
    )  # fmt: skip
    assert price(p, "tp2 pp8 vpp4 dp64 ep64 zero1 mbs1").total_s[0] == pytest.approx(25.3, rel=0.12)


def test_glm_5_1_at_128k_tokens_per_micro_batch():
    """Published SFT runs on 128 H200 (16 nodes), packed to 128k tokens: 37.6 s, 45.6 s, 50 s and 73.3 s, in this order."""
    arch = ap.load_model("zai-org/GLM-5.1", ap.host())
    p = problem(arch, gpu="H200", n_gpus=128, seq_len=32768, batch=64, task="sft")
    common = "dp2 zero1 mbs4 offload=optimizer recompute=full"
    texts = (f"tp8 pp4 cp2 ep16 {common}", f"tp4 pp4 cp4 ep16 {common}", f"tp16 pp4 ep16 {common}", f"tp16 pp2 cp2 ep32 {common}")
    seconds = price(p, *texts).total_s
    assert seconds[0] < seconds[1] < seconds[2] < seconds[3]
    assert strategy(texts[0]).world == 128
