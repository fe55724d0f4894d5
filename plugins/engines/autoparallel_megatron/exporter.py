"""Launch files of Megatron-LM (arguments, torchrun script, batch script, Kubernetes job) and a Megatron-Bridge configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.launch.model_facts import model_facts
from autoparallel_core.launch.write import (
    Group,
    Job,
    array,
    exports,
    group,
    kubernetes_job,
    node_variables,
    script,
    slurm,
    title,
)
from autoparallel_core.search.common_rules import parse_version
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy, StrategyBatch
from autoparallel_megatron.layout import PipelineSplit, layout_string, pipeline_split
from autoparallel_megatron.model_flags import model_groups
from autoparallel_megatron.refusals import NEEDS_ONE_CONNECTION
from autoparallel_megatron.software_flags import RECIPE_FLAGS
from autoparallel_megatron.stage_recompute import per_rank, shell_lines, without

SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
MEGATRON_FSDP_SINCE = "0.14.0"
"""Under this name; before, ``--use-custom-fsdp``."""
DISPATCHERS = {
    "alltoall": ("alltoall", None),
    "allgather": ("allgather", None),
    "deepep": ("flex", "deepep"),
    "hybridep": ("flex", "hybridep"),
}


def launch_files(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Files by name."""
    from autoparallel_megatron.bridge import bridge_config

    job = Job.of(problem, "nvcr.io/nvidia/pytorch:26.06-py3")
    head = title(problem, strategy, options)
    return {
        "launch.sh": script(head, "set -euo pipefail", node_variables(job), environment(problem, strategy), *_arrays(problem,
        strategy, options),
                            _run(problem, strategy, options)),
        "slurm.sh": slurm(job, head),
        "kubernetes.yaml": kubernetes_job(job, head, ["launch.sh"]),
        "bridge.py": bridge_config(problem, strategy, options),
    }  # fmt: skip


def _run(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> str:
    model = options.get("model") or ""
    return f"""\
# Data: mock data start without any preparation. For real ones replace this by --data-path PREFIX --split 99,1,0 and
# --tokenizer-type HuggingFaceTokenizer --tokenizer-model {model or "PATH"}
MEGATRON=${{MEGATRON:-./Megatron-LM}}

torchrun --nnodes "$NNODES" --node_rank "$NODE_RANK" --nproc_per_node "$GPUS_PER_NODE" \\
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\
    {per_rank(problem, strategy, options)}"$MEGATRON/pretrain_gpt.py" \\
    "${{MODEL_ARGS[@]}}" "${{PARALLEL_ARGS[@]}}" "${{TRAINING_ARGS[@]}}" "${{DATA_ARGS[@]}}" "$@\""""


def _arrays(problem: Problem, s: Strategy, options: Mapping[str, Any]) -> list[str]:
    facts = model_facts(problem.arch, options.get("config") or {})
    mock = group(
        "Mock data; NullTokenizer adds one token to the vocabulary.",
        "--mock-data", ("--tokenizer-type", "NullTokenizer"), ("--vocab-size", problem.arch.vocab_size - 1),
        ("--make-vocab-size-divisible-by", 128), ("--split", "99,1,0"),
    )  # fmt: skip
    return [
        array("MODEL_ARGS", model_groups(facts, problem.training.seq_len, options.get("config") or {})),
        array("PARALLEL_ARGS", parallel_groups(problem, s, options.get("chunks", ()))),
        array("TRAINING_ARGS", [*training_groups(problem, without(s, options)), *_host_activations(options)]),
        array("DATA_ARGS", [mock]),
        *filter(None, [shell_lines(problem, s, options)]),
    ]


def _host_activations(options: Mapping[str, Any]) -> list[Group]:
    layers = options.get("offloaded_layers")
    if not layers:
        return []
    why = f"Activations of the first {layers} layers wait in host memory."
    return [group(why, "--cpu-offloading", ("--cpu-offloading-num-layers", layers))]


# --- parallelism ----------------------------------------------------------------------------------------------


def parallel_groups(problem: Problem, s: Strategy, chunks: Sequence[int] = ()) -> list[Group]:
    """Degrees, pipeline layout, experts, data parallelism."""
    return [
        group(
            f"Degrees: {s.tp} × {s.cp} × {s.pp} GPUs hold one model, {s.dp} times.",
            ("--tensor-model-parallel-size", s.tp), "--sequence-parallel" if s.sp and s.tp > 1 else None,
            ("--pipeline-model-parallel-size", s.pp), ("--context-parallel-size", s.cp),
            ("--cp-comm-type", problem.software.cp_comm if s.cp > 1 else None),
        ),
        *_pipeline(problem, s, chunks),
        *_expert_groups(problem, s),
        *_data_parallel(problem, s),
    ]  # fmt: skip


def split_of(problem: Problem, s: Strategy, chunks: Sequence[int] = ()) -> PipelineSplit | None:
    """Layers per virtual stage: as the plan chose them, else the simplest legal split."""
    usual = pipeline_split(problem.arch.num_layers, s.pp, s.vpp)
    if chunks and (usual is None or usual.chunks != tuple(chunks)):
        return PipelineSplit("layout", tuple(chunks))
    return usual


def _pipeline(problem: Problem, s: Strategy, chunks: Sequence[int]) -> list[Group]:
    split = split_of(problem, s, chunks)
    if split is None or s.pp == 1:
        return []
    words: list[Any] = []
    why = "Pipeline: layers spread evenly."
    if split.kind == "layout":
        why = "Pipeline: which virtual stage holds what (E embedding, t decoder layer, m MTP layer, L loss)."
        words.append(("--pipeline-model-parallel-layout", layout_string(split, mtp_layers=len(problem.arch.mtp))))
    else:
        if split.kind == "account_for_ends":
            why = "Pipeline: embedding and loss count as layers."
            words += ["--account-for-embedding-in-pipeline-split"] * split.account_for_embedding
            words += ["--account-for-loss-in-pipeline-split"] * split.account_for_loss
        if split.kind == "first_last":
            why = f"Pipeline: {split.first} layers on the first and {split.last} on the last stage, the others even."
            words += [("--decoder-first-pipeline-num-layers", split.first), ("--decoder-last-pipeline-num-layers", split.last)]
        if s.vpp > 1:
            words.append(("--num-virtual-stages-per-pipeline-rank", s.vpp))
    if s.vpp > 1 and not problem.software.p2p_overlap:
        words.append("--no-overlap-p2p-communication")
    return [group(why, *words)]


def _expert_groups(problem: Problem, s: Strategy) -> list[Group]:
    if not problem.arch.num_experts:
        return []
    kind, backend = DISPATCHERS[problem.software.dispatcher]
    whole = s.etp * s.ep * s.pp
    why = f"Experts: etp {s.etp} × ep {s.ep} × pp {s.pp} = {whole} GPUs hold all of them, {s.world // whole} times."
    return [
        group(
            why, ("--expert-model-parallel-size", s.ep), ("--expert-tensor-parallel-size", s.etp),
            ("--moe-token-dispatcher-type", kind), ("--moe-flex-dispatcher-backend", backend),
            "--overlap-moe-expert-parallel-comm" if overlaps_experts(problem, s) else None,
        )
    ]  # fmt: skip


def overlaps_experts(problem: Problem, s: Strategy) -> bool:
    """Whether the all-to-all is hidden: as stated, else wherever the schedule allows."""
    from autoparallel_megatron.overlap import decides_overlap, overlap_allowed

    if decides_overlap(problem):
        return bool(overlap_allowed(StrategyBatch.of([s]))[0])
    return problem.software.ep_overlap


def _data_parallel(problem: Problem, s: Strategy) -> list[Group]:
    overlap = ["--overlap-grad-reduce"] if problem.software.dp_overlap else []
    if s.zero >= 2:
        new = parse_version(problem.engine_version) >= parse_version(MEGATRON_FSDP_SINCE)
        words = [
            "--use-megatron-fsdp" if new else "--use-custom-fsdp", ("--data-parallel-sharding-strategy", SHARDING[s.zero]),
            ("--ckpt-format", "fsdp_dtensor"), "--init-model-with-meta-device", *overlap,
            *(["--overlap-param-gather"] if overlap else []),
        ]  # fmt: skip
        return [
            group(
                "Data parallel: Megatron-FSDP shards " + ("parameters too." if s.zero == 3 else "gradients too."),
                *words,
                *_copies(s),
            )
        ]
    if s.zero == 1:
        gather = ["--overlap-param-gather"] if overlap else []
        return [
            group("Data parallel: optimizer state is sharded.", "--use-distributed-optimizer", *overlap, *gather, *_copies(s))
        ]
    return [group("Data parallel: plain replicas.", *overlap)] if overlap else []


def _copies(s: Strategy) -> list[Any]:
    """Several copies of the sharded state (hybrid sharding)."""
    copies = s.dp * s.cp // max(s.shard, 1)
    return [("--num-distributed-optimizer-instances", copies)] if copies > 1 else []


# --- training -------------------------------------------------------------------------------------------------


def training_groups(problem: Problem, s: Strategy) -> list[Group]:
    """Batch, precision, recomputation, optimizer."""
    work = problem.training
    rate = group(
        "Optimizer: yours to tune.", ("--train-iters", 1000), ("--lr", "1e-4"), ("--min-lr", "1e-5"), ("--lr-decay-style",
        "cosine"),
        ("--lr-warmup-iters", 100), ("--weight-decay", 0.1), ("--adam-beta1", 0.9), ("--adam-beta2", 0.95), ("--clip-grad",
        "1.0"),
        ("--init-method-std", 0.02), ("--log-interval", 1), "--log-throughput", ("--eval-iters", 0),
    )  # fmt: skip
    batch = group(
        f"Batch: {work.global_batch_size // (s.mbs * s.dp)} micro-batches per step.",
        ("--micro-batch-size", s.mbs), ("--global-batch-size", work.global_batch_size),
    )  # fmt: skip
    return [batch, precision_group(problem), *recompute_groups(problem, s), *_optimizer(problem, s), rate]


def precision_group(problem: Problem) -> Group:
    """Numbers of GEMMs and gradients."""
    work, recipe = problem.training, problem.software.low_precision_recipe
    words: list[Any] = {"fp16": ["--fp16"], "fp32": []}.get(work.precision, ["--bf16"])
    if work.precision in {"fp8", "mxfp8"}:
        name = "mxfp8" if work.precision == "mxfp8" else RECIPE_FLAGS.get(recipe or "", "tensorwise")
        words += [("--fp8-format", "e4m3" if name in {"mxfp8", "blockwise"} else "hybrid"), ("--fp8-recipe", name)]
    if work.precision == "nvfp4":
        words += [("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")]
    if not work.grad_reduce_in_fp32:
        words.append("--grad-reduce-in-bf16")
    kernel = {"flash2": "flash", "unfused": "unfused"}.get(problem.software.attention_kernel, "auto")
    words += ["--tp-comm-overlap"] if problem.software.tp_overlap else []
    return group("Numbers and kernels.", *words, ("--attention-backend", kernel))


def recompute_groups(problem: Problem, s: Strategy) -> list[Group]:
    """Activation recomputation."""
    name = RECOMPUTE[s.recompute]
    if name == "none":
        return []
    if name == "selective":
        modules = list(problem.software.recompute_modules)
        return [
            group("Recompute: parts of each layer.", ("--recompute-granularity", "selective"), ("--recompute-modules", modules))
        ]
    if not s.recompute_layers:
        return [group("Recompute: every layer.", ("--recompute-granularity", "full"), ("--recompute-method", "uniform"),
                      ("--recompute-num-layers", 1))]  # fmt: skip
    per = s.recompute_layers // s.vpp
    why = f"Recompute: {s.recompute_layers} layers of each stage" + (
        f", {per} of each of its {s.vpp} parts." if s.vpp > 1 else "."
    )
    return [group(why, ("--recompute-granularity", "full"), ("--recompute-method", "block"), ("--recompute-num-layers", per))]


def _optimizer(problem: Problem, s: Strategy) -> list[Group]:
    precise = problem.software.precision_aware_optimizer or bool(s.offload)
    if not precise:
        return []
    why = "Optimizer state in host memory." if s.offload else "Optimizer state in the stated number formats."
    offload = ["--optimizer-cpu-offload", ("--optimizer-offload-fraction", "1.0")] if s.offload else []
    return [group(why, "--use-precision-aware-optimizer", *offload)]


# --- environment ----------------------------------------------------------------------------------------------


def environment(problem: Problem, s: Strategy) -> str:
    """Variables without which the run is slower, or does not start."""
    old = problem.cluster.gpu.architecture.lower() in NEEDS_ONE_CONNECTION
    out: list[tuple[str, str, str]] = []
    if s.zero < 2 and (s.tp > 1 or s.cp > 1) and old:
        overlapping = overlaps_experts(problem, s) and problem.arch.num_experts
        value = "32" if overlapping else "1"
        why = (
            "Expert overlap wants several queues (this version only warns with tp or cp)."
            if overlapping
            else "Tensor and context parallelism on this GPU need one queue, so that communication is launched in order."
        )
        out.append(("CUDA_DEVICE_MAX_CONNECTIONS", value, why))
    elif s.zero >= 2:
        out.append(("CUDA_DEVICE_MAX_CONNECTIONS", "8", "FSDP needs several queues; 1 is refused."))
    out += [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "Less fragmentation: the fit is predicted without it."),
        ("NCCL_GRAPH_REGISTER", "0", "CUDA graphs need it with growing segments; without graphs it does nothing."),
    ]
    out.append(("NVTE_FWD_LAYERNORM_SM_MARGIN", "16", "Leave multiprocessors to communication kernels that overlap."))
    out.append(("NVTE_BWD_LAYERNORM_SM_MARGIN", "16", ""))
    return exports(out)
