"""DeepSpeed launches: JSON, accelerate's deepspeed_config, the launcher; good and bad."""

from __future__ import annotations

import json
from typing import Any

import pytest
from launch_files import Checker

H100 = ("--gpu-type", "H100")
CONFIG: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8},
}
RUN = "deepspeed --num_gpus 8 --num_nodes 2 train.py --deepspeed ds.json --max_seq_length 4096 --model_name_or_path m"


def files(run: str = RUN, **changes: Any) -> dict[str, str]:
    config = {k: v for k, v in (CONFIG | changes).items() if v is not None}
    return {"ds.json": json.dumps(config), "go.sh": run}


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        ({}, "tp1 pp1 dp16 zero3 mbs2"),
        ({"zero_optimization": {"stage": 1}}, "tp1 pp1 dp16 zero1 mbs2"),
        ({"zero_optimization": None}, "tp1 pp1 dp16 mbs2"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
            "tp1 pp1 dp16 zero3 mbs2 offload=optimizer",
        ),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}}}, "tp1 pp1 dp16 zero3 mbs2"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "tp1 pp1 dp16 zero3 shard8 mbs2"),
        ({"tensor_parallel": {"autotp_size": 2}, "train_batch_size": 32}, "tp2 pp1 dp8 zero3 mbs2"),
        ({"sequence_parallel_size": 4, "train_batch_size": 16}, "tp1 pp1 dp4 cp4 zero3 mbs2"),
    ],
)
def test_json(checker: Checker, changes: dict[str, Any], strategy: str) -> None:
    found = checker(files(**changes), *H100, model="llama-8b")
    assert found.strategy == strategy
    assert found.rules == set()
    assert found.launch["engine"] == "deepspeed"
    assert found.launch["unknown"] == []


def test_auto_values_come_from_the_scripts_flags(checker: Checker) -> None:
    auto = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    run = f"{RUN} --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --gradient_checkpointing true"
    found = checker(files(run, **auto), *H100, model="llama-8b")
    assert found.strategy == "tp1 pp1 dp16 zero3 mbs4 recompute=full"
    assert found.document["workload"]["global_batch_size"] == 4 * 2 * 16


def test_adapters(checker: Checker) -> None:
    found = checker(files(f"{RUN} --use_lora true --load_in_4bit True --load_in_8bit False"), *H100, model="llama-8b").document
    assert found["workload"]["task"] == "lora"
    assert any("adapters' own memory" in a for a in found["assumptions"])
    assert [s.split()[0] for s in found["launch"]["unmodelled"]] == ["--load_in_4bit"]


def test_accelerate_states_the_same(checker: Checker) -> None:
    text = """\
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
deepspeed_config:
  zero_stage: 2
  gradient_accumulation_steps: 4
  offload_optimizer_device: cpu
"""
    run = "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 1 --max_seq_length 2048"
    found = checker({"a.yaml": text, "go.sh": run}, *H100, model="llama-8b")
    assert found.strategy == "tp1 pp1 dp8 zero2 mbs1 offload=optimizer"
    assert found.document["workload"]["global_batch_size"] == 32


@pytest.mark.parametrize(
    ("changes", "rule", "says"),
    [
        ({"train_batch_size": 60}, "batch = micro × accumulation × dp", "2 × accumulation 2 × 16"),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "offload_param", "stage 3, not 2"),
        ({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, "offload_optimizer", "stage is 0"),
        ({"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8}}, "hpz", "needs stage 3"),
        ({"fp16": {"enabled": True}}, "one precision", "both enabled"),
        ({"tensor_parallel": {"autotp_size": 3}}, "heads % tp", "remainder 2"),
    ],
)
def test_refusals(checker: Checker, changes: dict[str, Any], rule: str, says: str) -> None:
    found = checker(files(**changes), *H100, model="llama-8b")
    assert found.code == 3
    assert rule in found.rules
    assert says in found.sentences


def test_a_pipeline_takes_zero_1_at_most(checker: Checker) -> None:
    run = f"{RUN} --pipeline_parallel_size 4"
    bad = checker(files(run, train_batch_size=16), *H100, model="llama-8b")
    assert "pipeline needs zero ≤ 1" in bad.rules
    good = checker(files(run, train_batch_size=16, zero_optimization={"stage": 1}), *H100, model="llama-8b")
    assert good.strategy == "tp1 pp4 dp4 zero1 mbs2"


def test_json_alone_needs_the_machines(checker: Checker) -> None:
    alone = {"ds.json": json.dumps(CONFIG)}
    found = checker(alone, *H100, "--n-gpus", "16", "--max-length", "4096", model="llama-8b")
    assert found.strategy == "tp1 pp1 dp16 zero3 mbs2"
    assert any("do not say on how many GPUs" in n for n in found.launch["notes"])


def test_what_is_not_priced_is_named(checker: Checker) -> None:
    zero = {"stage": 3, "offload_param": {"device": "nvme"}, "zero_quantized_weights": True}
    launch = checker(files(zero_optimization=zero, future_section={}), *H100, model="llama-8b").launch
    assert len(launch["unmodelled"]) == 3
    assert launch["unknown"] == ["future_section"]


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("deepspeed --num_gpus 8", 8),  # one node where none is stated
        ("deepspeed --num_gpus 4 --num_nodes 3", 12),
        ("deepspeed --include localhost:0,2,3,5", 4),
        ("deepspeed --include worker-0:0,1@worker-1:0,1,2,3,4,5", 8),
        ("torchrun --nproc_per_node 2", 2),
        ("deepspeed --hostfile hosts --num_gpus 8", None),  # the hosts are not among the files
    ],
)
def test_gpus_of_the_launcher(checker: Checker, launcher: str, gpus: int | None) -> None:
    run = RUN.replace("deepspeed --num_gpus 8 --num_nodes 2", launcher)
    found = checker(files(run, train_batch_size=None), *H100, model="llama-8b")
    assert (found.document["cluster"]["n_gpus"] if gpus else None) == gpus
    assert any("how many GPUs" in n for n in found.launch["notes"]) == (gpus is None)


@pytest.mark.parametrize("stage", [4, 5, -1, "three"])
def test_zero_has_four_stages(checker: Checker, stage: Any) -> None:
    found = checker(files(zero_optimization={"stage": stage}), *H100, model="llama-8b")
    assert found.rules == {"zero stage"}
    assert f"stage is {stage!r}; it is 0, 1, 2 or 3" in found.sentences


@pytest.mark.parametrize(
    ("flags", "strategy"),
    [
        ("", "tp4 pp2 dp2 zero1 mbs2 sp=off"),
        ("--sequence-parallel --checkpoint-activations", "tp4 pp2 dp2 zero1 mbs2 recompute=full"),
    ],
)
def test_layers_cut_by_hand(checker: Checker, flags: str, strategy: str) -> None:
    """Megatron-DeepSpeed: Megatron's flags for the layout, a switch and a file for the rest."""
    run = (
        "deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 "
        f"--num-layers 32 --micro-batch-size 2 --seq-length 4096 --deepspeed --deepspeed_config ds.json --zero-stage 1 {flags}"
    )
    found = checker(files(run, zero_optimization={"stage": 1}, train_batch_size=8), *H100, model="llama-8b")
    assert found.strategy == strategy
    assert found.rules == set()
    assert found.launch["engine"] == "deepspeed"


def test_a_plain_model_is_not_cut_in_a_pipeline(checker: Checker) -> None:
    changes = {"tensor_parallel": {"autotp_size": 2}, "pipeline": {"stages": 2}, "zero_optimization": {"stage": 1}}
    found = checker(files(train_batch_size=None, **changes), *H100, "--batch-size", "64", model="llama-8b")
    assert found.rules == {"autotp in a pipeline"}
