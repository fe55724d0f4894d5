"""Servers started by a container image: docker, compose and Kubernetes; the image's tag is the engine's version."""

from __future__ import annotations

import pytest
from launch_files import Checker

H100 = ("--gpu-type", "H100")
FLAGS = "--model m --tensor-parallel-size 2 --max-model-len 8192"
POD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: server}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: server}}}}
  template:
    metadata: {{labels: {{app: server}}}}
    spec:
      containers:
      - name: server
        image: {image}
        {words}
        resources: {{limits: {{nvidia.com/gpu: "2"}}}}
"""


@pytest.mark.parametrize(
    ("files", "strategy", "version"),
    [
        (
            {"run.sh": f"docker run --gpus all -p 8000:8000 --ipc=host -v ~/c:/c \\\n  vllm/vllm-openai:v0.10.2 {FLAGS}"},
            "tp2 pp1 dp1 mbs1", "0.10.2",
        ),
        ({"run.sh": f"podman run ghcr.io/x/vllm-openai:latest {FLAGS}"}, "tp2 pp1 dp1 mbs1", "0.33.0"),
        ({"run.sh": "docker run vllm/vllm-openai:v0.11.0 m -tp 2 --max-model-len 8192"}, "tp2 pp1 dp1 mbs1", "0.11.0"),
        (
            {"compose.yaml": f"services:\n  a:\n    image: vllm/vllm-openai:v0.9.1\n    command: {FLAGS}\n"},
            "tp2 pp1 dp1 mbs1", "0.9.1",
        ),
        (
            {"pod.yaml": POD.format(image="vllm/vllm-openai:v0.11.0", words=f"args: [{', '.join(FLAGS.split())}]")},
            "tp2 pp1 dp3 mbs1", "0.11.0",
        ),
        (
            {"pod.yaml": POD.format(image="vllm/vllm-openai:v0.11.0", words=f'command: [sh, -c, "vllm serve m {FLAGS[10:]}"]')},
            "tp2 pp1 dp3 mbs1", "0.11.0",
        ),
        (
            {"run.sh": "docker run lmsysorg/sglang:v0.5.3-cu126 python3 -m sglang.launch_server --model-path m --tp 2"},
            "tp2 pp1 dp1 mbs1", "0.5.3",
        ),
    ],
)  # fmt: skip
def test_images(checker: Checker, files: dict[str, str], strategy: str, version: str) -> None:
    found = checker(files, *H100, model="llama-8b")
    assert found.strategy == strategy
    assert found.document["engine"]["version"] == version
    assert found.code == 0


def test_the_commands_own_version_wins(checker: Checker) -> None:
    files = {"run.sh": f"docker run vllm/vllm-openai:v0.10.2 {FLAGS}"}
    assert checker(files, *H100, "--engine-version", "0.33.0", model="llama-8b").document["engine"]["version"] == "0.33.0"
