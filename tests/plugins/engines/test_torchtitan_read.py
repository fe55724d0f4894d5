"""torchtitan launches: TOML of 0.2, Python configurations of 0.3, overrides on the command line."""

from __future__ import annotations

import pytest
from launch_files import Checker

DDP = "--parallelism.data_parallel_replicate_degree 64 --parallelism.data_parallel_shard_degree 1"
PP4 = "--parallelism.pipeline_parallel_degree 4"
WHERE = ("--gpu-type", "H100", "--n-gpus", "64", "--batch-size", "128")
TOML = """\
[job]
description = "70B"
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 2
seq_len = 4096
steps = 1000
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""
INTERLEAVED = """\
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 41
"""
PYTHON = """\
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import SelectiveAC

def mine():
    return Trainer.Config(
        training=TrainingConfig(local_batch_size=4, seq_len=4096, global_batch_size=128, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(tensor_parallel_degree=4, data_parallel_replicate_degree=2, data_parallel_shard_degree=8),
        activation_checkpoint=SelectiveAC.Config(),
    )
"""


def test_toml(checker: Checker) -> None:
    found = checker({"train.toml": TOML}, *WHERE, model="llama-70b")
    assert (found.code, found.strategy) == (0, "tp8 pp1 dp8 zero3 mbs2 recompute=full")
    assert found.document["engine"]["version"] == "0.2.2"
    assert found.document["engine"]["software"]["elementwise"] == "compiled"


def test_python_and_overrides(checker: Checker) -> None:
    found = checker({"mine.py": PYTHON}, "--gpu-type", "H100", model="llama-70b")
    assert (found.strategy, found.document["cluster"]["n_gpus"]) == ("tp4 pp1 dp16 zero3 shard8 mbs4 recompute=selective", 64)
    script = "NGPU=8 MODULE=mine CONFIG=mine ./run_train.sh --parallelism.tensor_parallel_degree 8 --training.local_batch_size=2"
    both = checker({"mine.py": PYTHON, "go.sh": script}, *WHERE, model="llama-70b")
    assert both.strategy.startswith("tp8 pp1 dp16 zero3 shard8 mbs2")


@pytest.mark.parametrize(
    ("flags", "strategy"),
    [
        ("--parallelism.tensor_parallel_degree 4", "tp4 pp1 dp16 zero3 mbs8 recompute=selective"),
        (
            "--parallelism.context_parallel_degree 2 --training.local_batch_size 1",
            "tp1 pp1 dp32 cp2 zero3 mbs1 recompute=selective",
        ),
        (f"{PP4} --training.local_batch_size 8 --activation_checkpoint.mode none", "tp1 pp4 dp16 zero2 mbs1"),
        (
            f"{PP4} --parallelism.pipeline_parallel_schedule Interleaved1F1B --parallelism.pipeline_parallel_microbatch_size 2",
            "tp1 pp4 dp16 vpp2 zero2 mbs2 recompute=selective",
        ),
        (
            f"{DDP} --training.local_batch_size 2",
            "tp1 pp1 dp64 mbs2 recompute=selective",
        ),
        (
            "--parallelism.tensor_parallel_degree 2 --parallelism.enable_sequence_parallel False --training.local_batch_size 4",
            "tp2 pp1 dp32 zero3 mbs4 sp=off recompute=selective",
        ),
    ],
)
def test_flags(checker: Checker, flags: str, strategy: str) -> None:
    command = f"torchrun --nproc_per_node 8 --nnodes 8 -m torchtitan.train --module llama3 --config llama3_70b {flags}"
    found = checker({"go.sh": command}, *WHERE, "--max-length", "4096", model="llama-70b")
    assert found.strategy == strategy


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("tensor_parallel_degree = 8", "tensor_parallel_degree = 16"), "kv heads % tp"),
        (
            ("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 9"),
            "layers per stage",
        ),
        (
            ("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 3"),
            "local batch % micro-batch",
        ),
        (
            ('mode = "full"\n[compile]\nenable = true', 'mode = "memory_budget"\n[compile]\nenable = false'),
            "memory budget needs compile",
        ),
        (("context_parallel_degree = 1", "context_parallel_degree = 3"), "world size"),
        (("pipeline_parallel_degree = 1", INTERLEAVED), "schedule"),
    ],
)
def test_refusals(checker: Checker, change: tuple[str, str], rule: str) -> None:
    """8 key/value heads do not go over tp 16; 82 layers in stages of 9 make 10 stages, no multiple of 4."""
    assert change[0] in TOML
    found = checker({"t.toml": TOML.replace(*change)}, *WHERE, model="llama-70b")
    assert found.code == 3
    assert rule in found.rules


def test_a_pipeline_that_drains_more_than_once_is_said(checker: Checker) -> None:
    text = TOML.replace("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 4").replace(
        "local_batch_size = 2", "local_batch_size = 8"
    )
    found = checker({"t.toml": text}, *WHERE, model="llama-70b")
    assert any(
        "the pipeline drains after each local batch of 8 sequences, 8 times per step" in s for s in found.launch["unmodelled"]
    )


TWO = "--parallelism.tensor_parallel_degree 2"


@pytest.mark.parametrize(
    ("files", "model"),
    [
        (
            {"a.toml": '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 2\n'},
            "meta-llama/Llama-3.1-8B",
        ),
        ({"go.sh": f"NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh {TWO}"}, "meta-llama/Llama-3.1-8B"),
        ({"go.sh": f"NGPU=8 CONFIG_FILE=./configs/qwen3_0.6b.toml ./run_train.sh {TWO}"}, "Qwen/Qwen3-0.6B"),
        ({"go.sh": f"NGPU=8 CONFIG_FILE=./configs/mine.toml ./run_train.sh {TWO}"}, None),
    ],
)
def test_the_model_is_a_family_and_a_flavour(checker: Checker, files: dict[str, str], model: str | None) -> None:
    found = checker(files, "--gpu-type", "H100", "--n-gpus", "8", "--max-length", "4096", "--batch-size", "64")
    if model is None:
        assert found.code == 2
        assert "which model" in found.err
    else:
        assert found.document["model"]["name"] == model


def test_a_flavour_that_is_not_public_is_named(checker: Checker) -> None:
    text = '[model]\nname = "llama3"\nflavor = "debugmodel"\n[parallelism]\ntensor_parallel_degree = 2\n'
    found = checker({"a.toml": text}, "--gpu-type", "H100", "--n-gpus", "8")
    assert found.code == 2
    assert "llama3 debugmodel" in found.err
