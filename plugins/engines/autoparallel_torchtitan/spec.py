"""Identity, defaults and constants of the engine."""

from __future__ import annotations

from autoparallel_core.spec.problem import Constant, EngineSpec
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.workload import Software

TORCHTITAN = EngineSpec(
    name="torchtitan",
    modes=("training",),
    default_version="0.3.0",
    oldest_version="0.2.0",
    summary=(
        "torchtitan: FSDP2/HSDP with tensor, context (FlexAttention), pipeline and expert parallelism, torch.compile and "
        "per-operator activation checkpointing"
    ),
    software=Software(
        attention_kernel="flash2",
        elementwise="compiled",
        sharded_dispatch=True,
        dp_overlap=True,
        dispatcher="alltoall",
        cp_comm="all_gather",
        grad_dtype="fp32",
        cuda_graph="none",
        recompute_modules=("op",),
    ),
    constants={
        "memory_bytes_per_logit": Constant(
            12.0,
            "bytes kept per local logit at the peak: 16-bit logits and their gradient, fp32 logits and theirs",
            "cross_entropy_loss computes on logits.float(): 2 + 4 + 4 + 2 bytes in backward",
            "vendor",
        ),
        "memory_low_precision_input_bytes": Constant(
            2.0,
            "bytes per element that a quantised GEMM keeps of its input for the weight gradient",
            "torchao float8 linear layers save the 16-bit input and cast it again",
            "vendor",
        ),
        "memory_largest_matrix_bytes": Constant(
            0.0,
            "bytes per element of the largest matrix, held as a transient",
            "gradients are reduced into their shard; there is no whole-matrix fp32 copy (torch.distributed.fsdp)",
            "assumed",
        ),
    },
    moe_grid="folded",
    default_strategy={"zero": 3, "recompute": 1},
)
"""CUDA graphs are on by default in 0.3 but exclude pipelines and most expert dispatchers; they are taken as off here."""

SPACE = Space(etp=(1,), zero=(0, 2, 3), hsdp=True, offload=(0,), partial_recompute=False)
