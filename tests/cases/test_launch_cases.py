"""Layouts that people met trouble with in public trackers: the command must give the right answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoparallel_core.cli.main import main

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 40, "num_key_value_heads": 10, "head_dim": 128, "intermediate_size": 13824, "vocab_size": 32000,
    "tie_word_embeddings": False, "max_position_embeddings": 8192, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
MOE_FP8 = BASE | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "quantization_config": FP8,
}  # fmt: skip


def heads(n: int, kv: int, layers: int = 40) -> dict[str, Any]:
    return BASE | {"num_attention_heads": n, "num_key_value_heads": kv, "hidden_size": n * 128, "num_hidden_layers": layers}


def status(tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], *words: str) -> tuple[int, dict[str, Any]]:
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = main(["check", "--model-path", str(tmp_path), "--gpu-type", "H100", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("config", "engine", "strategy", "legal"),
    [
        (heads(52, 52, 60), "vllm", "tp3 pp1 dp1", False),
        (heads(52, 52, 60), "vllm", "tp1 pp3 dp1", True),
        (heads(40, 40), "vllm", "tp6 pp1 dp1", False),
        (heads(28, 4), "vllm", "tp8 pp1 dp1", False),
        (heads(28, 4), "vllm", "tp4 pp1 dp2", True),
        (heads(40, 10), "vllm", "tp4 pp1 dp1", False),
        (heads(40, 10), "vllm", "tp2 pp1 dp1", True),
        (heads(40, 10) | {"intermediate_size": 17920}, "vllm", "tp5 pp1 dp1", True),
        (heads(32, 4), "fsdp", "tp8 pp1 dp2 zero3", False),
        (heads(32, 4), "vllm", "tp8 pp1 dp1", True),
        (heads(32, 2), "torchtitan", "tp4 pp1 dp2 zero3", False),
        (heads(32, 2), "torchtitan", "tp2 pp1 dp4 zero3", True),
        (MOE_FP8, "vllm", "tp4 pp1 dp1 etp4", False),
        (MOE_FP8, "vllm", "tp2 pp1 dp1 etp2", True),
        (MOE_FP8, "vllm", "tp4 pp1 dp1 ep4", True),
        (MOE_FP8, "sglang", "tp8 pp1 dp1 etp8", False),
        (BASE, "deepspeed", "tp1 pp4 dp2 zero2", False),
        (BASE, "deepspeed", "tp1 pp4 dp2 zero1", True),
    ],
)
def test_layouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], engine: str, strategy: str, legal: bool
) -> None:
    serving = engine in {"vllm", "sglang"}
    words = ("--mode", "inference") if serving else ("--max-length", "4096", "--batch-size", "64")
    code, document = status(tmp_path, capsys, config, "--engine", engine, "--strategy", strategy, *words)
    assert (document["violations"] == []) == legal, document["violations"]
    if not legal:
        assert code == 3
        assert document["instead"], "something legal is offered"
