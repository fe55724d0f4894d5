"""Megatron launches as people write them: scripts, argument lists, batch jobs, Bridge and NeMo configurations; good and bad."""

from __future__ import annotations

import pytest
from launch_files import Checker

from autoparallel_megatron.model_flags import leading_dense
from autoparallel_megatron.refusals import layout_stages

H100 = ("--gpu-type", "H100")
PP2 = "--pipeline-model-parallel-size 2"
BLOCK = "--recompute-granularity full --recompute-method block --recompute-num-layers"
BATCH = "--micro-batch-size 1 --global-batch-size 256 --seq-length 4096 --max-position-embeddings 8192 --bf16"
SCRIPT = """\
#!/bin/bash
# Trains on 4 nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=4
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=${TP:-4}
PP=2

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr ${MASTER_ADDR:-localhost}
)
GPT_MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336 --swiglu
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 4096
    --max-position-embeddings 4096
    --vocab-size 128256   # without padding
    --untie-embeddings-and-output-weights
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 256
    --train-iters 500000
    --bf16
    --lr 6.0e-5 --clip-grad 1.0
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size $PP
    --sequence-parallel
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} 2>&1 | tee train.log
"""


def test_a_script_states_everything(checker: Checker) -> None:
    """Model, machines, batch and layout come from the script: no flag but the GPU is needed."""
    found = checker({"train.sh": SCRIPT}, *H100)
    assert (found.code, found.strategy) == (0, "tp4 pp2 dp4 zero1 mbs1")
    d = found.document
    assert (d["cluster"]["n_gpus"], d["cluster"]["gpus_per_node"]) == (32, 8)
    assert (d["workload"]["global_batch_size"], d["workload"]["seq_len"], d["workload"]["precision"]) == (256, 4096, "bf16")
    assert (d["model"]["num_layers"], d["model"]["hidden_size"]) == (32, 4096)
    assert d["engine"]["software"]["dp_overlap"] is True
    assert d["launch"]["unknown"] == []


def arguments(flags: str) -> dict[str, str]:
    return {"args.txt": f"{BATCH} {flags}"}


@pytest.mark.parametrize(
    ("flags", "strategy"),
    [
        ("--tensor-model-parallel-size 8 --sequence-parallel", "tp8 pp1 dp4 mbs1"),
        ("--tensor-model-parallel-size=2", "tp2 pp1 dp16 mbs1 sp=off"),
        ("--sequence-parallel --tensor-model-parallel-size 1", "tp1 pp1 dp32 mbs1"),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2", "tp1 pp4 dp8 vpp2 mbs1"),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4", "tp1 pp4 dp8 vpp2 mbs1"),
        ("--context-parallel-size 4 --use-distributed-optimizer", "tp1 pp1 dp8 cp4 zero1 mbs1"),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 4", "tp1 pp1 dp32 zero1 shard8 mbs1"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "tp1 pp1 dp32 zero3 mbs1"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "tp1 pp1 dp32 zero2 mbs1"),
        ("--use-torch-fsdp2 --untie-embeddings-and-output-weights", "tp1 pp1 dp32 zero3 mbs1"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "tp1 pp1 dp32 mbs1 recompute=full"),
        (f"{BLOCK} 6", "tp1 pp1 dp32 mbs1 recompute=full:6"),
        (f"{PP2} --num-virtual-stages-per-pipeline-rank 2 {BLOCK} 3", "tp1 pp2 dp16 vpp2 mbs1 recompute=full:6"),
        ("--recompute-activations", "tp1 pp1 dp32 mbs1 recompute=selective"),
        (
            "--use-distributed-optimizer --optimizer-cpu-offload --use-precision-aware-optimizer",
            "tp1 pp1 dp32 zero1 mbs1 offload=optimizer",
        ),
    ],
)
def test_strategies(checker: Checker, flags: str, strategy: str) -> None:
    found = checker(arguments(flags), *H100, "--n-gpus", "32", model="llama-8b")
    assert found.strategy == strategy
    assert found.rules == set()


def test_experts_are_cut_like_dense_layers_unless_stated(checker: Checker) -> None:
    moe = f"{BATCH} --num-experts 8 --expert-model-parallel-size 4 --tensor-model-parallel-size 2 --sequence-parallel"
    unset = checker({"a.txt": moe}, *H100, "--n-gpus", "32", model="mixtral")
    assert unset.strategy == "tp2 pp1 dp16 ep4 etp2 mbs1"
    assert any("is not given: it is the tensor-parallel size, 2" in n for n in unset.launch["notes"])
    stated = checker({"a.txt": f"{moe} --expert-tensor-parallel-size 1"}, *H100, "--n-gpus", "32", model="mixtral")
    assert stated.strategy == "tp2 pp1 dp16 ep4 mbs1"


UNEVEN = [
    (
        f"{PP2} --decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 13",
        "first + last = layers",
        "no stage for the other 8",
    ),
    ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7", "middle layers % stages", "leave 25 for 3 stages"),
    ("--pipeline-model-parallel-size 3", "layers % pp", "remainder 2"),
    (f"{PP2} --num-virtual-stages-per-pipeline-rank 3", "layers per stage % vpp", "cannot be divided by 3"),
    (f"{PP2} --num-layers-per-virtual-pipeline-stage 5", "layers per stage % virtual", "no multiple of 5"),
    (
        f"{PP2} --num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 8",
        "one way to interleave",
        "give one of them",
    ),
    (
        "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*8|t*8|t*8|t*7L'",
        "layout layers",
        "31 decoder layers",
    ),
    ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*16|t*16|L'", "layout stages % pp", "3 stages"),
    ("--recompute-granularity full", "recompute method", "uniform or block"),
    ("--recompute-granularity selective --recompute-method block", "selective recompute", "takes no --recompute-method"),
    ("--recompute-granularity selective --recompute-modules core_attn attention", "recompute modules", "attention"),
    ("--optimizer-cpu-offload", "offload needs precision", "--use-precision-aware-optimizer"),
    ("--overlap-param-gather", "param gather", "--use-distributed-optimizer"),
    ("--model-parallel-size 2", "removed flag", "--tensor-model-parallel-size"),
    ("--use-torch-fsdp2 --pipeline-model-parallel-size 2", "torch fsdp2", "pp 2"),
    (
        "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2",
        "hierarchical cp",
        "multiply to cp 8",
    ),
    ("--bf16 --fp16", "one precision", "exclude each other"),
]


@pytest.mark.parametrize(("flags", "rule", "says"), UNEVEN)
def test_refused_combinations(checker: Checker, flags: str, rule: str, says: str) -> None:
    found = checker(arguments(f"--tensor-model-parallel-size 1 {flags}"), *H100, "--n-gpus", "24", model="llama-8b")
    assert found.code == 3
    assert rule in found.rules
    assert says in found.sentences


def test_positions_and_environment(checker: Checker) -> None:
    short = BATCH.replace("8192", "2048")
    assert (
        "positions"
        in checker({"a.txt": f"{short} --tensor-model-parallel-size 1"}, *H100, "--n-gpus", "8", model="llama-8b").rules
    )
    many = SCRIPT.replace("CONNECTIONS=1", "CONNECTIONS=32")
    assert "connections" in checker({"a.sh": many}, *H100).rules
    assert "connections" not in checker({"a.sh": many}, "--gpu-type", "B200").rules, "newer GPUs lift it"
    fsdp = SCRIPT.replace(
        "--use-distributed-optimizer", "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
    )
    assert "fsdp connections" in checker({"a.sh": fsdp}, *H100).rules


def test_a_documented_layout_is_legal(checker: Checker) -> None:
    """Features, pipeline layout: 61 layers and one MTP layer over 16 ranks and 2 virtual stages."""
    flags = f"""--num-experts 256 --tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1
    --expert-model-parallel-size 8 --pipeline-model-parallel-size 16 --pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L"
    --mtp-num-layers 1 --use-distributed-optimizer {BLOCK.replace("block", "uniform")} 1"""
    text = " ".join(f"{BATCH} --global-batch-size 2048 {flags}".split())
    found = checker({"a.txt": text}, *H100, "--n-gpus", "512", model="deepseek-v3")
    assert found.rules == set()
    assert "vpp2" in found.strategy
    assert found.document["plan"]["training"]["layers_per_stage"] == [5, *[4] * 13, 2, 2]


def test_a_bridge_configuration(checker: Checker) -> None:
    code = """\
from megatron.bridge import AutoBridge
SEQ = 8192
def config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("org/unknown-model").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = SEQ
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 128
    cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    cfg.ddp.grad_reduce_in_fp32 = False
    return cfg
"""
    found = checker({"plan.py": code}, *H100, "--n-gpus", "64", model="llama-70b")
    assert found.strategy == "tp4 pp2 dp8 zero1 mbs1", "the distributed optimizer is Bridge's default"
    w = found.document["workload"]
    assert (w["seq_len"], w["global_batch_size"], w["precision"], w["grad_reduce_in_fp32"]) == (8192, 128, "fp8", False)


def test_a_nested_yaml_configuration(checker: Checker) -> None:
    text = """\
trainer: {num_nodes: 4, devices: 8}
model:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  micro_batch_size: 2
  global_batch_size: 64
  data: {seq_length: 4096}
"""
    found = checker(
        {"model.yaml": text}, *H100, "--n-gpus", "32", "--engine", "megatron", "--max-length", "4096", model="llama-8b"
    )
    assert found.strategy == "tp2 pp2 dp8 zero1 mbs2"


def test_the_script_and_the_model_file_may_disagree_on_nothing(checker: Checker) -> None:
    """Without a batch the script trains one micro-batch per data-parallel rank, as Megatron takes it."""
    script = "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 2 --seq-length 4096"
    script += " --tensor-model-parallel-size 2"
    found = checker({"a.sh": script}, *H100, model="llama-8b")
    assert found.document["workload"]["global_batch_size"] == 8
    assert any("no global batch size is given: 8" in n for n in found.launch["notes"])


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et|(tt|)*30mL", 32),
        ("Et*3|(tt|)*29,m|L", 32),
        ("E|t*2|L", 3),
        ("Ettt|tttL", 2),
        ("(E|t)*1|L", 3),
    ],
)
def test_layout_strings(text: str, stages: int) -> None:
    assert len(layout_stages(text)) == stages


def test_layout_letters_are_repeated() -> None:
    assert layout_stages("Et*3|(tt|)*2,m|L") == ["Ettt", "tt", "tt", "m", "L"]


@pytest.mark.parametrize(
    ("pattern", "layers", "dense"),
    [("([0]*3+[1]*58)", 61, 3), ("[0,1,1]", 3, 1), ("1", 4, None), ("2", 4, None), ("([1]*4)", 4, None), ("nonsense", 4, None)],
)
def test_layers_with_experts(pattern: str, layers: int, dense: int | None) -> None:
    assert leading_dense(pattern, layers) == dense
