"""Pipelines, expert grids and micro-batches as people wrote them in launch scripts."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Answer, ask, check

from autoparallel_core.cli.main import main

DEEPSEEK = "deepseek-ai/DeepSeek-V3"


@pytest.fixture(autouse=True)
def without_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be best is no part of these cases, and searching a thousand GPUs takes its time."""
    monkeypatch.setattr("autoparallel_core.search.check._best", lambda *_: None)


def megatron(
    model: str, flags: str, *, nodes: int = 1, batch: int = 64, before: str = "", gpu: str = "H100", seq: int = 4096
) -> Answer:
    """A script of so many nodes of eight."""
    script = f"""#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
{before}
MODEL_PARALLEL="{flags}"
torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py $MODEL_PARALLEL \\
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size {batch} --seq-length {seq} \\
  --max-position-embeddings {seq} --bf16
"""
    return ask("check", "--gpu-type", gpu, model=model, files={"train.sh": script})


@pytest.mark.parametrize(
    ("model", "version", "layers"),
    [
        (DEEPSEEK, "0.33.0", [15, 15, 16, 15]),
        ("Qwen/Qwen3-235B-A22B", "0.33.0", [23, 24, 24, 23]),
        ("Qwen/Qwen3-235B-A22B", "0.9.0", [23, 24, 24, 23]),
        (DEEPSEEK, "0.7.0", [15, 15, 15, 16]),  # the last stage took the rest until the ends were spared
    ],
)
def test_where_remaining_layers_go_is_the_versions(model: str, version: str, layers: list[int]) -> None:
    answer = check("vllm", "H200", 4, "pp4", "--engine-version", version, model=model)
    assert [s["layers"] for s in answer.plan["memory"]["stages"]] == layers


def test_two_stages_hold_all_layers_or_some_are_never_built() -> None:
    uneven = "--pipeline-model-parallel-size 2 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1"
    lost = megatron(
        "Qwen/Qwen3-30B-A3B", f"{uneven} --decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 13"
    )
    assert lost.rules == {"first + last = layers"}
    assert "first 11 + last 13 = 24 layers of 48" in lost.sentences
    whole = megatron(
        "Qwen/Qwen3-30B-A3B", f"{uneven} --decoder-first-pipeline-num-layers 22 --decoder-last-pipeline-num-layers 26"
    )
    assert whole.legal, whole.sentences


@pytest.mark.parametrize(("last", "legal"), [(13, True), (14, False), (10, True)])
def test_a_short_last_stage_leaves_a_multiple_for_the_others(last: int, legal: bool) -> None:
    flags = (
        f"--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers {last} --expert-model-parallel-size 8 "
        "--expert-tensor-parallel-size 1"
    )
    answer = megatron(DEEPSEEK, flags, nodes=32, batch=2048)
    assert answer.legal == legal, answer.sentences
    if last == 13:
        layers = answer.plan["training"]["layers_per_stage"]
        assert layers == [16, 16, 16, 13]


@pytest.mark.parametrize(
    ("pp", "layout", "chunks", "broken"),
    [
        (16, "Et*3|(tt|)*29,m|L", 2, None),
        (8, "Et|(tt|)*30mL", 4, None),
        (16, "Et*3|(tt|)*28,m|L", None, "layout layers"),
        (24, "Et*3|(tt|)*29,m|L", None, "layout stages % pp"),
        (16, "Et*3|(tt|)*29|L", None, "layout mtp"),
    ],
)
def test_layout_strings_are_counted(pp: int, layout: str, chunks: int | None, broken: str | None) -> None:
    flags = (
        f"--pipeline-model-parallel-size {pp} --pipeline-model-parallel-layout {layout} --mtp-num-layers 1 "
        "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
    )
    answer = megatron(DEEPSEEK, flags, nodes=max(pp, 16), batch=2048)
    if broken:
        assert broken in answer.rules, answer.sentences
    else:
        assert answer.legal, answer.sentences
        assert answer.plan["axes"]["vpp"] == chunks


RECIPE = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 8 --sequence-parallel --expert-model-parallel-size 64 "
    "--expert-tensor-parallel-size 1 --pipeline-model-parallel-layout Et|(tt|)*30mL --mtp-num-layers 1 "
    "--recompute-granularity selective --recompute-modules mla_up_proj mlp --moe-token-dispatcher-type flex "
    "--moe-flex-dispatcher-backend deepep"
)


def test_the_reference_recipe_of_a_thousand_gpus_is_legal_and_fits() -> None:
    answer = megatron(DEEPSEEK, RECIPE, nodes=128, batch=16384)
    axes = answer.plan["axes"]
    assert answer.code == 0
    assert (axes["tp"], axes["pp"], axes["vpp"], axes["ep"], axes["etp"], axes["dp"]) == (2, 8, 4, 64, 1, 64)
    assert sum(answer.plan["training"]["layers_per_stage"]) == 61


def test_expert_parallelism_does_not_multiply_the_world() -> None:
    """tp 2 × pp 16 × ep 64 is 2048; the job runs on 1024 GPUs all the same, with dp 32 and one copy of the experts."""
    words = ("--batch-size", "16384")
    assert check("megatron", "H100", 1024, "tp2 pp16 dp32 ep64 zero1", *words, model=DEEPSEEK).legal
    product = check("megatron", "H100", 1024, "tp2 pp16 dp64 ep64 zero1", *words, model=DEEPSEEK)
    assert product.rules == {"world size"}


@pytest.mark.parametrize(("ep", "legal"), [(2, True), (4, False)])
def test_a_grid_of_experts_divides_the_gpus(ep: int, legal: bool) -> None:
    answer = check("megatron", "H100", 4, f"pp2 dp2 ep{ep} zero1", "--batch-size", "64", model="openai/gpt-oss-20b")
    assert answer.legal == legal
    if not legal:
        assert "etp 1 × ep 4 × pp 2 = 8 does not divide the 4 GPUs" in answer.sentences
        assert "ep 2 would do" in answer.sentences


@pytest.mark.parametrize(("batch", "legal"), [(24, False), (48, True)])
def test_interleaving_wants_as_many_micro_batches_as_stages(batch: int, legal: bool) -> None:
    answer = check("megatron", "H100", 48, "pp6 vpp2 dp8 zero1", "--batch-size", str(batch), model="Qwen/Qwen3-8B")
    assert answer.legal == legal
    if not legal:
        assert answer.rules == {"interleaving % pp"}
        assert "3 micro-batches per rank" in answer.sentences
        assert "vpp 1 would do, or a batch of 48" in answer.sentences


@pytest.mark.parametrize(("overlap", "legal"), [("", True), ("--no-overlap-p2p-communication", False)])
def test_two_interleaved_stages_need_overlapped_sends(overlap: str, legal: bool) -> None:
    flags = f"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3 {overlap}"
    answer = megatron("Qwen/Qwen3-8B", flags)
    assert answer.legal == legal
    if not legal:
        assert answer.rules == {"vpp needs pp"}


def test_micro_batches_in_flight_do_not_grow_with_their_number() -> None:
    """One forward, one backward: stage k of four holds 4 − k micro-batches, however many there are."""
    held: dict[int, list[float]] = {}
    for batches in (4, 8, 32):
        words = ("--engine", "megatron", "--gpu-type", "H100", "--n-gpus", "8", "--batch-size", str(2 * batches))
        answer = ask("explain", *words, "--strategy", "pp4 dp2 zero1", model="Qwen/Qwen3-8B")
        held[batches] = [s["bytes"]["activations"] for s in answer.plan["memory"]["stages"]]
    assert held[8] == pytest.approx(held[4])
    assert held[32] == pytest.approx(held[4])
    first, middle, last = held[4]
    assert first / last == pytest.approx(4, rel=0.02)
    assert middle / last == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize(("kind", "legal"), [("p2p", True), ("a2a", False)])
def test_heads_that_are_traded_must_suffice(kind: str, legal: bool) -> None:
    """Two key/value heads cannot be scattered over four ranks; a ring passes them on whole."""
    answer = megatron("Qwen/Qwen2.5-3B-Instruct", f"--context-parallel-size 4 --cp-comm-type {kind}")
    assert answer.legal == legal, answer.sentences
    if not legal:
        assert "2 key/value heads per tensor-parallel rank cannot be scattered over cp 4" in answer.sentences


def test_graphs_with_growing_segments_need_registration_off() -> None:
    """Captured collectives of memory that may move: the allocator's setting is fine once NCCL registers none."""
    flags = "--cuda-graph-impl local --cuda-graph-scope full_iteration"
    growing = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    bad = megatron("Qwen/Qwen3-8B", flags, before=growing)
    assert "NCCL_GRAPH_REGISTER=0" in bad.sentences
    assert megatron("Qwen/Qwen3-8B", flags, before=f"{growing}\nexport NCCL_GRAPH_REGISTER=0").legal


def test_zero_beyond_one_excludes_a_pipeline_of_deepspeed() -> None:
    words: tuple[Any, ...] = ("--batch-size", "64")
    answer = check("deepspeed", "H100", 8, "pp2 dp4 zero2", *words, model="Qwen/Qwen3-8B")
    assert answer.rules == {"pipeline needs zero ≤ 1"}
    assert "zero1 would do, or pp 1" in answer.sentences


def test_every_report_shows_the_grid_of_experts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe's default ep leaked into a job of four GPUs; the product was nowhere to be seen."""
    monkeypatch.setenv("COLUMNS", "200")
    base = [
        "--engine",
        "megatron",
        "--gpu-type",
        "H100",
        "--model",
        "Qwen/Qwen3-30B-A3B",
        "--batch-size",
        "1024",
        "--n-gpus",
        "32",
    ]
    assert main(["explain", *base, "--strategy", "tp1 pp2 dp16 ep8 zero1 mbs1"]) == 0
    assert "experts on etp·ep·pp 1·8·2=16 ×2" in " ".join(capsys.readouterr().out.split())
    assert main([*base, "--planner", "grid", "--top", "2"]) == 0
    assert "experts etp·ep·pp" in capsys.readouterr().out


@pytest.mark.parametrize(("recipe", "rows"), [("blockwise", 128), ("mxfp8", 32), ("tensorwise", 16)])
def test_each_recipe_has_its_own_block_of_rows(recipe: str, rows: int) -> None:
    flags = f"--tensor-model-parallel-size 4 --sequence-parallel --fp8-format e4m3 --fp8-recipe {recipe}"
    whole = megatron("Qwen/Qwen3-8B", flags, seq=4 * rows * 61, gpu="B200")
    cut = megatron("Qwen/Qwen3-8B", flags, seq=4 * (rows * 61 + rows // 2), gpu="B200")
    assert whole.legal, whole.sentences
    assert cut.rules == {"rows % alignment"}
    assert f"need a multiple of {rows}" in cut.sentences
