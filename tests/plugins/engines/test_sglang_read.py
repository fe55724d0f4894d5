"""``sglang.launch_server`` as people write it, good and bad."""

from __future__ import annotations

import pytest
from launch_files import Checker

H200 = ("--gpu-type", "H200")


@pytest.mark.parametrize(
    ("command", "model", "strategy"),
    [
        ("python3 -m sglang.launch_server --model-path m --tp 8", "llama-8b", "tp8 pp1 dp1 mbs1"),
        ("python -m sglang.launch_server --model m --tp-size 2 --dp-size 4", "llama-8b", "tp2 pp1 dp4 mbs1"),
        ("sglang serve --model-path m --tensor-parallel-size 4 --pp-size 2", "llama-8b", "tp4 pp2 dp1 mbs1"),
        ("python3 -m sglang.launch_server --model-path m --tp 8 --ep-size 8", "mixtral", "tp8 pp1 dp1 ep8 mbs1"),
        ("python3 -m sglang.launch_server --model-path m --tp 8 --ep-size 2", "mixtral", "tp8 pp1 dp1 ep2 etp4 mbs1"),
        ("python3 -m sglang.launch_server --model-path m --tp 8", "mixtral", "tp8 pp1 dp1 etp8 mbs1"),
        (
            "python3 -m sglang.launch_server --model-path m --tp 8 --dp 8 --enable-dp-attention",
            "mixtral",
            "tp1 pp1 dp1 attn_dp8 etp8 mbs1",
        ),
        (
            "python3 -m sglang.launch_server --model-path m --tp 8 --attn-dp-size 2 --ep 4",
            "mixtral",
            "tp4 pp1 dp1 attn_dp2 ep4 etp2 mbs1",
        ),
        ("python3 -m sglang.launch_server --model-path m --tp 8 --moe-a2a-backend deepep", "mixtral", "tp8 pp1 dp1 ep8 mbs1"),
        ("--model-path m --tp-size 4 --mem-fraction-static 0.8", "llama-8b", "tp4 pp1 dp1 mbs1"),
        ("import sglang as sgl\nengine = sgl.Engine(model_path='m', tp_size=4)", "llama-8b", "tp4 pp1 dp1 mbs1"),
    ],
)
def test_layouts(checker: Checker, command: str, model: str, strategy: str) -> None:
    """GPUs = tp_size × pp_size, and × dp_size only without attention dp; experts split over tp_size."""
    name = "run.py" if command.startswith("import") else "serve.sh"
    found = checker({name: command}, *H200, model=model)
    assert (found.code, found.strategy) == (0, strategy)
    assert found.launch["engine"] == "sglang"


def test_two_nodes_as_the_docs_show_them(checker: Checker) -> None:
    node = "python3 -m sglang.launch_server --model-path m --tp 16 --dist-init-addr 10.0.0.1:5000 --nnodes 2 --node-rank {}"
    found = checker({"n0.sh": node.format(0), "n1.sh": node.format(1)}, *H200, model="deepseek-v3")
    assert (found.strategy, found.document["cluster"]["n_nodes"]) == ("tp16 pp1 dp1 etp16 mbs1", 2)
    assert found.code == 0


def test_running_requests_count_over_all_attention_ranks(checker: Checker) -> None:
    flags = "--tp 8 --dp 8 --enable-dp-attention --max-running-requests 512 --chunked-prefill-size 4096 --context-length 4096"
    work = checker({"s.sh": f"python3 -m sglang.launch_server --model-path m {flags}"}, *H200, model="mixtral").document[
        "workload"
    ]
    assert (work["max_num_seqs"], work["max_num_batched_tokens"], work["max_model_len"]) == (64, 4096, 4096)


@pytest.mark.parametrize(
    ("flags", "model", "rule"),
    [
        ("--tp 8 --dp 3 --enable-dp-attention", "mixtral", "tp % attention dp"),
        ("--tp 8 --ep 3", "mixtral", "tp % (ep moe_dp)"),
        ("--tp 8 --moe-dense-tp-size 4", "mixtral", "moe dense tp"),
        ("--tp 4 --pp-size 2 --speculative-algorithm EAGLE", "llama-8b", "speculation in a pipeline"),
        ("--tp 8 --dp 2 --nnodes 2 --node-rank 0", "llama-8b", "dp over nodes"),
        ("--tp 4 --chunked-prefill-size 1000 --page-size 64", "llama-8b", "chunk % page"),
        ("--tp 3", "llama-8b", "heads % tp"),
        ("--tp 8 --dwdp-size 4", "mixtral", "dwdp"),
    ],
)
def test_refusals(checker: Checker, flags: str, model: str, rule: str) -> None:
    found = checker({"s.sh": f"python3 -m sglang.launch_server --model-path m {flags}"}, *H200, model=model)
    assert found.code == 3
    assert rule in found.rules


def test_flags_that_matter_are_named(checker: Checker) -> None:
    flags = (
        "--tp 8 --disaggregation-mode decode --enable-torch-compile --attention-backend fa3 --strange --host h --log-level info"
    )
    launch = checker({"s.sh": f"python3 -m sglang.launch_server --model-path m {flags}"}, *H200, model="llama-8b").launch
    assert any("split deployment" in s for s in launch["unmodelled"])
    assert any(s.startswith("--enable-torch-compile") for s in launch["unmodelled"])
    assert any(s.startswith("--attention-backend") for s in launch["unmodelled"])
    assert launch["unknown"] == ["--strange"]
