"""Training that ran out of memory, of the GPU or of the host, and what the answer must have said before."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Answer, ask, check
from case_models import GALACTICA_30B, GPT_40B, LLAMA_33B

MISTRAL = "mistralai/Mistral-7B-v0.1"


def explain(engine: str, gpu: str, n_gpus: int, strategy: str, *words: str, model: str | dict[str, Any]) -> Answer:
    base = ("explain", "--engine", engine, "--gpu-type", gpu, "--n-gpus", str(n_gpus), "--strategy", strategy)
    return ask(*base, *words, model=model)


def test_zero_on_one_rank_shards_nothing() -> None:
    words = ("--batch-size", "16", "--max-length", "1024")
    alone = {z: check("deepspeed", "A100", 1, f"zero{z}", *words, model=MISTRAL) for z in (0, 3)}
    assert alone[3].document["status"] == "does not fit"
    assert alone[3].plan["memory"]["allocated_bytes"] == pytest.approx(alone[0].plan["memory"]["allocated_bytes"])
    states = sum(alone[3].stage()[k] for k in ("weights", "gradients", "optimizer"))
    assert states / 7.242e9 >= 16, "two bytes of weights, two of gradients, twelve of optimizer state at least"
    eight = explain("deepspeed", "A100", 8, "dp8 zero3", *words, model=MISTRAL)
    assert sum(eight.stage()[k] for k in ("weights", "gradients", "optimizer")) == pytest.approx(states / 8, rel=0.01)


def test_zero_divides_by_data_parallel_ranks_not_by_all() -> None:
    """Eight GPUs of one model-parallel group hold 40 billion parameters no better with ZeRO; six such groups do."""
    words = ("--batch-size", "48", "--max-length", "1024", "--precision", "fp16")
    with_zero, without = (check("deepspeed", "V100-32GB", 8, s, *words, model=GPT_40B) for s in ("tp8 zero2", "tp8"))
    assert with_zero.document["status"] == "does not fit"
    assert with_zero.plan["memory"]["allocated_bytes"] == without.plan["memory"]["allocated_bytes"]
    assert check("deepspeed", "V100-32GB", 48, "tp8 dp6 zero2 recompute=full", *words, model=GPT_40B).code == 0


def test_states_beyond_all_gpus_do_not_fit_and_an_old_gpu_lacks_bf16() -> None:
    """1.1 TB of states over sixteen 32 GB cards."""
    words = ("--batch-size", "16", "--max-length", "2048")
    answer = check("fsdp", "V100-32GB", 16, "dp16 zero3", *words, model="meta-llama/Llama-2-70b-hf")
    assert answer.document["status"] == "does not fit"
    stage = answer.stage()
    assert 16 * (stage["gradients"] + stage["optimizer"]) == pytest.approx(16 * 68.98e9, rel=0.02)
    assert "--precision fp16" in answer.document["assumptions"]
    refused = check("fsdp", "V100-32GB", 16, "dp16 zero3", "--precision", "bf16", model="meta-llama/Llama-2-70b-hf")
    assert refused.code == 2
    assert "has no bf16 tensor cores" in refused.err


ACCELERATE = """\
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  {loading}
"""


@pytest.mark.parametrize(("setting", "counted", "said"), [("true", False, False), ("false", True, False), (None, False, True)])
def test_every_process_may_load_a_copy_into_host_memory(setting: str | None, counted: bool, said: bool) -> None:
    """Eight copies of 70 billion 32-bit parameters are 2.2 TB; the node has 2."""
    loading = f"fsdp_cpu_ram_efficient_loading: {setting}" if setting else "fsdp_offload_params: false"
    words = ("--gpu-type", "A100", "--batch-size", "16", "--max-length", "2048", "--host-memory-gb", "2000")
    files = {"fsdp.yaml": ACCELERATE.format(loading=loading)}
    answer = ask("check", *words, model="meta-llama/Llama-2-70b-hf", files=files)
    assert any("2,207.3 GB per node of 2,000.0 GB" in s for s in answer.document["shortfalls"]) == counted
    assert any("2,207 GB of host memory per node" in n for n in answer.document["launch"]["notes"]) == said


@pytest.mark.parametrize(("host_gb", "fits"), [(600, False), (800, True)])
def test_offloading_moves_the_wall_to_the_host(host_gb: int, fits: bool) -> None:
    """33 billion parameters with their optimizer in host memory: 600 GB were too little, 750 to 800 enough."""
    words = ("--batch-size", "16", "--max-length", "2048", "--host-memory-gb", str(host_gb))
    answer = check("deepspeed", "A100-SXM-40GB", 8, "dp8 zero3 offload=optimizer recompute=full", *words, model=LLAMA_33B)
    assert (answer.code == 0) == fits
    assert 600e9 < answer.plan["memory"]["host_bytes_per_node"] < 800e9
    if not fits:
        assert answer.document["shortfalls"][0].startswith("host memory: ")


def test_more_zero_ranks_do_not_cut_activations() -> None:
    words = ("--batch-size", "64", "--max-length", "2048")
    held = {
        n: explain("deepspeed", "A100", n, f"dp{n} zero3 offload=optimizer", *words, model=GALACTICA_30B).stage() for n in (8, 32)
    }
    assert held[8]["activations"] == held[32]["activations"]
    assert held[8]["weights"] == pytest.approx(4 * held[32]["weights"])


def test_what_to_do_about_activations_is_offered() -> None:
    """Sixteen sequences per rank are too many; recomputation and fewer at once are single changes that fit."""
    words = ("--batch-size", "512", "--max-length", "2048")
    answer = check("deepspeed", "A100", 16, "dp16 zero3 mbs8", *words, model=GALACTICA_30B)
    assert answer.document["status"] == "does not fit"
    changes = " ".join(i["change"] for i in answer.document["instead"])
    assert "recompute" in changes or "mbs" in changes


@pytest.mark.parametrize(("backend", "keeps_scores"), [("unfused", True), ("local", True), ("flash", False), ("fused", False)])
def test_unfused_attention_keeps_its_scores(backend: str, keeps_scores: bool) -> None:
    """32 heads × 4096² scores, five bytes each: 2.7 GB per layer."""

    def activations(attention: str) -> float:
        script = f"""torchrun --nproc_per_node 8 pretrain_gpt.py --attention-backend {attention} --use-distributed-optimizer \\
  --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --max-position-embeddings 4096 --bf16\n"""
        return ask("check", "--gpu-type", "A100", model="microsoft/Phi-3-mini-4k-instruct", files={"t.sh": script}).stage()[
            "activations"
        ]

    extra = (activations(backend) - activations("flash")) / 32
    assert extra == pytest.approx(5 * 32 * 4096**2 if keeps_scores else 0, rel=0.1)


@pytest.mark.parametrize(("strategy", "shards"), [("dp8 zero1", 1), ("tp4 dp2 zero1", 4), ("tp2 cp2 dp2 zero1", 4)])
def test_logits_are_tokens_times_vocabulary_over_tp_and_cp(strategy: str, shards: int) -> None:
    """In 16 bit and once more upcast, on the last stage: six bytes for each."""
    answer = explain("megatron", "H100", 8, strategy, "--batch-size", "64", model="Qwen/Qwen3-8B")
    assert answer.stage(-1)["logits"] == pytest.approx(6 * 4096 * 151936 / shards, rel=0.01)


def test_the_fewest_nodes_come_with_the_offload_they_assume() -> None:
    words = ("--engine", "megatron", "--gpu-type", "H100", "--n-gpus", "128", "--batch-size", "64", "--find-min-nodes")
    answer = ask(*words, model="Qwen/Qwen3-235B-A22B")
    fewest = answer.document["min_nodes"]
    assert "offload=optimizer" in answer.document["strategies"][0]["strategy"]
    assert fewest["host_bytes_per_node"] > 0
    assert fewest["roomy_n_nodes"] is None or fewest["roomy_n_nodes"] > fewest["n_nodes"]


def test_a_full_gpu_is_called_tight() -> None:
    """Above nine tenths the allocator starts to retry; such plans are marked and come with a roomier neighbour."""
    answer = check("fsdp", "A100", 8, "dp8 zero3 mbs8", "--batch-size", "64", "--max-length", "4600", model=MISTRAL)
    roomy = check("fsdp", "A100", 8, "dp8 zero3 mbs2", "--batch-size", "64", "--max-length", "4600", model=MISTRAL)
    full = answer.plan["memory"]["reserved_bytes"] / answer.plan["memory"]["capacity_bytes"]
    assert answer.plan["verdict"] == ("fits" if full <= 0.9 else "tight" if full <= 1 else "does not fit")
    assert full > 0.9
    assert roomy.plan["verdict"] == "fits"
