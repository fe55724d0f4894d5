"""``trtllm-serve`` commands and option files, good and bad."""

from __future__ import annotations

import pytest
from launch_files import Checker

H200 = ("--gpu-type", "H200")
YAML = """\
tensor_parallel_size: 8
moe_expert_parallel_size: 4
enable_attention_dp: false
max_batch_size: 256
max_num_tokens: 8192
max_seq_len: 4096
kv_cache_config:
  free_gpu_memory_fraction: 0.85
  dtype: fp8
cuda_graph_config:
  enable_padding: true
print_iter_log: true
"""


@pytest.mark.parametrize(
    ("files", "model", "strategy"),
    [
        ({"s.sh": "trtllm-serve m --tp_size 4 --pp_size 2"}, "llama-8b", "tp4 pp2 dp1 mbs1"),
        ({"s.sh": "trtllm-serve serve m --tp_size=8 --ep_size 8"}, "mixtral", "tp8 pp1 dp1 ep8 mbs1"),
        ({"c.yaml": YAML}, "mixtral", "tp8 pp1 dp1 ep4 etp2 mbs1"),
        ({"s.sh": "trtllm-serve m --config c.yaml", "c.yaml": YAML}, "mixtral", "tp8 pp1 dp1 ep4 etp2 mbs1"),
        (
            {"s.sh": "trtllm-serve m --extra_llm_api_options ./c.yaml --tp_size 4", "c.yaml": YAML},
            "mixtral",
            "tp4 pp1 dp1 ep4 mbs1",
        ),
        (
            {
                "s.sh": "cat > c.yaml <<EOF\nenable_attention_dp: true\nmoe_expert_parallel_size: 8\nEOF\n"
                "trtllm-serve m --tp_size 8 --config c.yaml"
            },
            "mixtral",
            "tp1 pp1 dp1 attn_dp8 ep8 mbs1",
        ),
        ({"s.sh": "mpirun -n 16 trtllm-llmapi-launch trtllm-serve m --tp_size 8 --pp_size 2"}, "llama-70b", "tp8 pp2 dp1 mbs1"),
    ],
)
def test_layouts(checker: Checker, files: dict[str, str], model: str, strategy: str) -> None:
    found = checker(files, *H200, "--max-length", "4096", model=model)
    assert (found.code, found.strategy) == (0, strategy)
    assert found.launch["engine"] == "trtllm"
    assert found.launch["unknown"] == []


def test_limits_of_the_file(checker: Checker) -> None:
    work = checker({"c.yaml": YAML}, *H200, model="mixtral").document["workload"]
    assert (work["max_num_seqs"], work["max_num_batched_tokens"], work["max_model_len"]) == (256, 8192, 4096)
    assert (work["memory_fraction"], work["kv_dtype"]) == (0.85, "fp8")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tensor_parallel_size: 8\nmoe_expert_parallel_size: 4\nmoe_tensor_parallel_size: 4\n", "tp = moe_tp moe_ep"),
        ("tensor_parallel_size: 8\nmoe_expert_parallel_size: 3\n", "tp % moe_ep"),
        ("tensor_parallel_size: 8\ncontext_parallel_size: 2\nmoe_expert_parallel_size: 8\n", "moe_ep with cp"),
        ("tensor_parallel_size: 3\nmoe_expert_parallel_size: 1\n", "heads % tp"),
    ],
)
def test_refusals(checker: Checker, text: str, rule: str) -> None:
    found = checker({"c.yaml": text}, *H200, model="mixtral")
    assert found.code == 3
    assert rule in found.rules


def test_options_that_matter_are_named(checker: Checker) -> None:
    text = YAML + "speculative_config: {decoding_type: MTP}\nattn_backend: FLASHINFER\nwhat_is_this: 1\n"
    launch = checker({"c.yaml": text}, *H200, model="mixtral").launch
    assert any(s.startswith("speculative_config") for s in launch["unmodelled"])
    assert any(s.startswith("attn_backend") for s in launch["unmodelled"])
    assert launch["unknown"] == ["what_is_this"]
