"""``vllm serve`` as people write it: commands, scripts, manifests, YAML, Python; good and bad."""

from __future__ import annotations

import pytest
from launch_files import Checker

H100 = ("--gpu-type", "H100")


@pytest.mark.parametrize(
    ("command", "strategy"),
    [
        ("vllm serve org/m --tensor-parallel-size 8", "tp8 pp1 dp1 mbs1"),
        ("vllm serve org/m -tp 4 -pp=2", "tp4 pp2 dp1 mbs1"),
        ("vllm serve org/m --tensor_parallel_size=2 --data-parallel-size 4", "tp2 pp1 dp4 mbs1"),
        ("python3 -m vllm.entrypoints.openai.api_server --model org/m -tp 2", "tp2 pp1 dp1 mbs1"),
        ("CUDA_VISIBLE_DEVICES=0,1 nohup /opt/bin/vllm serve org/m -tp 2 > log 2>&1 &", "tp2 pp1 dp1 mbs1"),
        ("docker run --gpus all img:v1 vllm serve org/m --tensor-parallel-size 4", "tp4 pp1 dp1 mbs1"),
        ("--model org/m --tensor-parallel-size 4 --max-model-len 4096", "tp4 pp1 dp1 mbs1"),
        ("TP=4\nARGS=(--tensor-parallel-size $TP\n  --max-num-seqs 64)\nvllm serve org/m ${ARGS[@]}", "tp4 pp1 dp1 mbs1"),
        ("for g in 0 1; do\n CUDA_VISIBLE_DEVICES=$g vllm serve org/m --port $((8000 + g)) &\ndone\nwait", "tp1 pp1 dp2 mbs1"),
    ],
)
def test_commands(checker: Checker, command: str, strategy: str) -> None:
    found = checker({"serve.sh": command}, *H100, "--max-length", "4096", model="llama-8b")
    assert (found.code, found.strategy) == (0, strategy)
    assert found.launch["engine"] == "vllm"
    assert found.launch["unknown"] == []


def test_replicas_share_experts_where_there_are_some(checker: Checker) -> None:
    """docs, data parallel deployment: with experts, data-parallel ranks exchange tokens; ep is tp × dp or off."""
    dense = "vllm serve m -tp 2 -dp 4"
    assert checker({"s.sh": dense}, *H100, "--max-length", "4096", model="llama-8b").strategy == "tp2 pp1 dp4 mbs1"
    assert checker({"s.sh": dense}, *H100, "--max-length", "4096", model="mixtral").strategy == "tp2 pp1 dp1 attn_dp4 etp8 mbs1"
    both = checker({"s.sh": f"{dense} --enable-expert-parallel"}, *H100, "--max-length", "4096", model="mixtral")
    assert both.strategy == "tp2 pp1 dp1 attn_dp4 ep8 mbs1"


def test_limits_reach_the_prediction(checker: Checker) -> None:
    flags = (
        "--max-model-len 4k --max-num-seqs 32 --max-num-batched-tokens 4096 --gpu-memory-utilization .8 --kv-cache-dtype fp8_e4m3"
    )
    work = checker({"s.sh": f"vllm serve m {flags}"}, *H100, model="llama-8b").document["workload"]
    assert (work["max_model_len"], work["max_num_seqs"], work["max_num_batched_tokens"]) == (4000, 32, 4096)
    assert (work["memory_fraction"], work["kv_dtype"]) == (0.8, "fp8")


def test_several_nodes(checker: Checker) -> None:
    node = "vllm serve m -tp 8 -pp 2 --max-model-len 4096 --nnodes 2 --node-rank {} --master-addr 10.0.0.1{}"
    found = checker({"a.sh": node.format(0, ""), "b.sh": node.format(1, " --headless")}, *H100, model="llama-70b")
    assert (found.strategy, found.document["cluster"]["n_gpus"]) == ("tp8 pp2 dp1 mbs1", 16)
    slurm = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gres=gpu:8\n"
    slurm += "srun -N2 bash -c 'vllm serve m -tp 8 -pp 2 --nnodes 2 --node-rank $SLURM_PROCID'"
    found = checker({"a.slurm": slurm}, *H100, "--max-length", "4096", model="llama-70b")
    assert (found.strategy, found.document["cluster"]["n_nodes"]) == ("tp8 pp2 dp1 mbs1", 2)


def test_a_deployment_of_replicas(checker: Checker) -> None:
    manifest = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  replicas: 3
  selector: {matchLabels: {app: llm}}
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.33.0
          args: ["--model", "org/m", "--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.9", "--max-model-len", "8192"]
          resources: {limits: {nvidia.com/gpu: "2"}}
"""
    found = checker({"deploy.yaml": manifest}, *H100, model="llama-8b")
    assert (found.strategy, found.document["cluster"]["n_gpus"]) == ("tp2 pp1 dp3 mbs1", 6)


def test_yaml_and_python(checker: Checker) -> None:
    config = "model: org/m\ntensor-parallel-size: 2\nmax-model-len: 4096\nenable-prefix-caching: true\n"
    assert checker({"c.yaml": config}, *H100, model="llama-8b").strategy == "tp2 pp1 dp1 mbs1"
    both = {"s.sh": "vllm serve --config c.yaml --tensor-parallel-size 4", "c.yaml": config}
    assert checker(both, *H100, model="llama-8b").strategy == "tp4 pp1 dp1 mbs1", "flags go before the file"
    code = "from vllm import LLM\nllm = LLM(model='org/m', tensor_parallel_size=2, max_model_len=4096, enforce_eager=True)\n"
    found = checker({"run.py": code}, *H100, model="llama-8b")
    assert found.strategy == "tp2 pp1 dp1 mbs1"
    assert any("--enforce-eager" in s for s in found.launch["unmodelled"])


def test_all_reasons_at_once(checker: Checker) -> None:
    """Expert width 1536 over 8 ranks is 192, no multiple of the FP8 block of 128; 6 GPUs divide neither heads nor experts."""
    found = checker({"s.sh": "vllm serve m -tp 8 --max-model-len 8192"}, *H100, model="qwen3-235b-fp8")
    assert (found.code, found.status, found.rules) == (3, "illegal", {"quantised width % block"})
    assert "1536" in found.sentences
    assert "192" in found.sentences
    assert any("ep8" in c["strategy"] and "tp8" in c["strategy"] for c in found.document["instead"])
    several = checker({"s.sh": "vllm serve m -tp 6 --enable-eplb -dcp 4"}, *H100, "--n-gpus", "8", model="qwen3-235b-fp8")
    assert {"heads % tp", "kv heads vs tp", "eplb needs ep", "tp % dcp"} <= several.rules
    assert "rule" not in several.err


@pytest.mark.parametrize(
    ("flags", "rule", "says"),
    [
        ("-tp 8 -dcp 4", "dcp ≤ tp / kv heads", "above the 8 key/value heads"),
        ("-tp 8 -pcp 2 -dp 2", "pcp and dp", "does not combine"),
        ("-tp 2 --enable-eplb", "eplb needs ep", "--enable-expert-parallel"),
    ],
)
def test_flags_that_vllm_refuses(checker: Checker, flags: str, rule: str, says: str) -> None:
    found = checker({"s.sh": f"vllm serve m {flags}"}, *H100, "--n-gpus", "32", "--max-length", "4096", model="llama-70b")
    assert found.code == 3
    assert rule in found.rules
    assert says in found.sentences


def test_redundant_experts_must_divide(checker: Checker) -> None:
    """256 experts + 30 redundant ones over 32 ranks leave 30."""
    flags = "-tp 4 -dp 8 --enable-expert-parallel --enable-eplb --max-model-len 4096"
    flags += """ --eplb-config '{"num_redundant_experts": 30}'"""
    bad = checker({"s.sh": f"vllm serve m {flags}"}, "--gpu-type", "H200", model="deepseek-v3")
    assert "experts + redundant % ep" in bad.rules
    assert "32 redundant ones would do" in bad.sentences
    good = checker({"s.sh": f"vllm serve m {flags.replace('30', '32')}"}, "--gpu-type", "H200", model="deepseek-v3")
    assert good.code == 0


def test_layer_partitions_are_counted(checker: Checker) -> None:
    bad = checker({"s.sh": "VLLM_PP_LAYER_PARTITION=10,10,10 vllm serve m -pp 4 --max-model-len 4096"}, *H100, model="llama-8b")
    assert "layer partition" in bad.rules
    worse = checker({"s.sh": "VLLM_PP_LAYER_PARTITION=8,8,8,9 vllm serve m -pp 4 --max-model-len 4096"}, *H100, model="llama-8b")
    assert "adds up to 33 layers, and the model has 32" in worse.sentences
    good = checker({"s.sh": "VLLM_PP_LAYER_PARTITION=7,8,8,9 vllm serve m -pp 4 --max-model-len 4096"}, *H100, model="llama-8b")
    assert good.code == 0


def test_the_engine_wants_room_for_its_longest_request(checker: Checker) -> None:
    """An 8B model on a 24 GB card has no room for 131,072 tokens of 131,072 bytes each; with a limit it starts."""
    card = ("--gpu-type", "L4", "--n-gpus", "1")
    bad = checker({"s.sh": "vllm serve m"}, *card, model="llama-8b")
    assert (bad.code, bad.status) == (3, "does not fit")
    assert "131,072 tokens" in bad.document["shortfalls"][0]
    assert checker({"s.sh": "vllm serve m --max-model-len 8192"}, *card, model="llama-8b").code == 0


def test_what_cannot_be_read(checker: Checker) -> None:
    assert checker({"s.sh": "vllm serve m -tp eight"}, *H100, model="llama-8b").code == 2
    unset = checker({"s.sh": "vllm serve m -tp $TP --max-model-len 4096 --mystery 3"}, *H100, model="llama-8b")
    assert unset.launch["unset"] == ["$TP"]
    assert unset.launch["unknown"] == ["--mystery"]
    two = checker({"s.sh": "vllm serve m -tp 2 &\nvllm serve m -tp 4"}, *H100, model="llama-8b")
    assert two.code == 2
    assert "2 different vllm serve launches" in two.err
