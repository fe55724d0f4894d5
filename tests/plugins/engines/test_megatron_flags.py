"""Megatron scripts: flags about kernels, and model sizes that leave the vocabulary to the tokenizer."""

from __future__ import annotations

import pytest
from launch_files import Checker

SCRIPT = """\
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel \\
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 \\
  --max-position-embeddings 4096 --bf16 {more}
"""
SIZES = "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu"


@pytest.mark.parametrize(
    ("flags", "passes"),
    [
        ("", "fused"),
        ("--no-rope-fusion", "partly-fused"),
        ("--transformer-impl local --use-flash-attn", "partly-fused"),
        ("--transformer-impl local --use-flash-attn --no-bias-swiglu-fusion --no-rope-fusion", "unfused"),
    ],
)
def test_fewer_fused_passes_take_longer(checker: Checker, flags: str, passes: str) -> None:
    verdict = checker({"train.sh": SCRIPT.format(more=flags)}, "--gpu-type", "H100", model="llama-8b")
    assert verdict.document["engine"]["software"]["elementwise"] == passes
    fused = checker({"train.sh": SCRIPT.format(more="")}, "--gpu-type", "H100", model="llama-8b")
    step, best = (v.document["plan"]["training"]["step_s"] for v in (verdict, fused))
    assert step > best if flags else step == best


def test_sizes_in_flags_want_the_tokenizers_vocabulary(checker: Checker) -> None:
    files = {"train.sh": SCRIPT.format(more=SIZES)}
    refused = checker(files, "--gpu-type", "H100")
    assert refused.code == 2
    assert "give --vocab-size" in refused.err
    told = checker(files, "--gpu-type", "H100", "--vocab-size", "32000")
    assert told.code == 0
    assert told.document["model"]["vocab_size"] == 32000
    assert told.document["model"]["num_layers"] == 32
