"""FSDP launches: accelerate YAML of both versions, its command line, the Trainer's flags; good and bad."""

from __future__ import annotations

import pytest
from launch_files import Checker

H100 = ("--gpu-type", "H100")
YAML = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_offload_params: false
  fsdp_activation_checkpointing: true
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
  parallelism_config_cp_size: 1
"""
OLD = """\
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_sharding_strategy: {strategy}
  fsdp_use_orig_params: true
"""
RUN = (
    "accelerate launch --config_file acc.yaml train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
    "--max_seq_length 4096"
)


def test_version_2_with_a_mesh(checker: Checker) -> None:
    found = checker({"acc.yaml": YAML, "go.sh": RUN}, *H100, model="llama-8b")
    assert (found.code, found.strategy) == (0, "tp2 pp1 dp8 zero3 shard4 mbs2 recompute=full")
    d = found.document
    assert (d["cluster"]["n_gpus"], d["cluster"]["gpus_per_node"]) == (16, 8)
    assert (d["workload"]["global_batch_size"], d["workload"]["seq_len"]) == (2 * 4 * 8, 4096)
    assert d["launch"]["unknown"] == []


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("FULL_SHARD", "tp1 pp1 dp16 zero3 mbs2"),
        ("SHARD_GRAD_OP", "tp1 pp1 dp16 zero2 mbs2"),
        ("1", "tp1 pp1 dp16 zero3 mbs2"),
        ("HYBRID_SHARD", "tp1 pp1 dp16 zero3 shard8 mbs2"),
    ],
)
def test_version_1(checker: Checker, name: str, strategy: str) -> None:
    files = {"acc.yaml": OLD.format(strategy=name), "go.sh": RUN}
    found = checker(files, *H100, "--gpus-per-node", "8", model="llama-8b")
    assert found.strategy == strategy


@pytest.mark.parametrize(
    ("command", "strategy"),
    [
        (
            "torchrun --nnodes 1 --nproc_per_node 8 t.py --fsdp 'full_shard auto_wrap' --per_device_train_batch_size 1 --bf16",
            "tp1 pp1 dp8 zero3 mbs1",
        ),
        (
            "torchrun --nproc_per_node 8 --nnodes 1 t.py --fsdp shard_grad_op --gradient_checkpointing True --micro_batch_size 4",
            "tp1 pp1 dp8 zero2 mbs4 recompute=full",
        ),
        (
            "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 8 --num_machines 1 t.py --micro_batch_size 1",
            "tp1 pp1 dp8 zero3 mbs1",
        ),
    ],
)
def test_flags(checker: Checker, command: str, strategy: str) -> None:
    found = checker({"go.sh": command}, *H100, "--max-length", "4096", "--batch-size", "64", model="llama-8b")
    assert found.strategy == strategy
    assert found.launch["engine"] == "fsdp"


@pytest.mark.parametrize(
    ("flags", "task"),
    [
        ("--use_peft --lora_r 16", "lora"),
        ("--use_lora True", "lora"),
        ("--finetuning_type lora", "lora"),
        ("--use_peft False", "pretrain"),
        ("--finetuning_type full", "pretrain"),
    ],
)
def test_adapters(checker: Checker, flags: str, task: str) -> None:
    """Frozen weights have neither gradients nor optimizer state."""
    found = checker({"acc.yaml": YAML, "go.sh": f"{RUN} {flags}"}, *H100, model="llama-8b").document
    assert found["workload"]["task"] == task
    held = found["plan"]["memory"]["stages"][0]["bytes"]
    assert (held.get("optimizer", 0.0) == 0.0) == (task == "lora")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("tp_size: 2", "tp_size: 4"), "parallelism = processes"),
        (("fsdp_version: 2", "fsdp_version: 1"), "fsdp 2 for parallelism"),
        (("dp_shard_size: 4", "dp_shard_size: 1"), "replication alone"),
        (
            (
                "dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4\n  parallelism_config_tp_size: 2",
                "dp_replicate_size: 1\n  parallelism_config_dp_shard_size: 1\n  parallelism_config_tp_size: 16",
            ),
            "kv heads % tp",
        ),
        (("cp_size: 1", "cp_size: 2\n  parallelism_config_sp_size: 2"), "cp or sp"),
        (("cp_size: 1", "cp_size: 1\n  parallelism_config_cp_backend: mine"), "cp_backend"),
    ],
)
def test_refusals(checker: Checker, change: tuple[str, str], rule: str) -> None:
    """16 processes are not 2 × 4 × 4; 8 key/value heads are not replicated over tp 16."""
    assert change[0] in YAML
    found = checker({"acc.yaml": YAML.replace(*change), "go.sh": RUN}, *H100, "--batch-size", "64", model="llama-8b")
    assert found.code == 3
    assert rule in found.rules


def test_unknown_keys_and_offload_are_named(checker: Checker) -> None:
    text = YAML.replace("fsdp_offload_params: false", "fsdp_offload_params: true\n  fsdp_future_option: 1")
    launch = checker({"acc.yaml": text, "go.sh": RUN}, *H100, model="llama-8b").launch
    assert launch["unknown"] == ["fsdp_future_option"]
    assert any("offloading moves parameters and gradients" in s for s in launch["unmodelled"])


def test_the_trainers_own_file_has_bare_names(checker: Checker) -> None:
    run = "torchrun --nproc_per_node 8 t.py --fsdp 'full_shard auto_wrap' --fsdp_config f.json --micro_batch_size 4"
    text = (
        '{"transformer_layer_cls_to_wrap": ["L"], "activation_checkpointing": true, "cpu_ram_efficient_loading": true, "new": 1}'
    )
    found = checker({"go.sh": run, "f.json": text}, *H100, "--batch-size", "64", model="llama-8b")
    assert found.strategy == "tp1 pp1 dp8 zero3 mbs4 recompute=full"
    assert found.launch["unknown"] == ["fsdp_new"]


@pytest.mark.parametrize(("sp", "rule"), [(4, None), (16, None), (3, "heads % sp")])
def test_ulysses_scatters_query_heads(checker: Checker, sp: int, rule: str | None) -> None:
    """32 query heads over 16 ranks are two each, the 8 key/value heads are replicated; over three they do not go."""
    sizes = f"sp_size: {sp}\n  parallelism_config_dp_shard_size: {48 // sp}"
    text = f"""distributed_type: FSDP
mixed_precision: bf16
num_machines: 6
num_processes: 48
fsdp_config:
  fsdp_version: 2
  fsdp_cpu_ram_efficient_loading: true
parallelism_config:
  parallelism_config_{sizes}
"""
    found = checker({"acc.yaml": text}, *H100, "--batch-size", "48", "--max-length", "4096", model="llama-8b")
    assert (rule in found.rules) == (rule is not None), found.sentences
