"""Identity, defaults and constants of the engine."""

from __future__ import annotations

from autoparallel_core.spec.problem import Constant, EngineSpec
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.workload import Software

DEEPSPEED = EngineSpec(
    name="deepspeed",
    modes=("training",),
    default_version="0.19.8",
    oldest_version="0.15.0",
    summary=(
        "DeepSpeed: ZeRO stages 0 to 3 with CPU offload, pipeline modules (ZeRO 1 at most), Ulysses sequence parallelism as cp, "
        "tensor parallelism of Megatron or AutoTP"
    ),
    software=Software(
        attention_kernel="flash2",
        elementwise="partly-fused",
        dp_overlap=True,
        dispatcher="alltoall",
        cp_comm="a2a",
        grad_dtype="bf16",
    ),
    constants={
        "memory_grad_bytes": Constant(
            2.0,
            "bytes per parameter of accumulated gradients",
            "16-bit gradients; ZeRO, arXiv 1910.02054, section 3.1",
            "vendor",
        ),
        "memory_optimizer_bytes": Constant(
            20.0,
            "bytes per parameter of sharded state: fp32 master, two moments, fp32 gradient and its flat copy",
            "BF16_Optimizer keeps fp32 gradients beside 12 bytes of Adam state; published allocated peaks",
            "fitted",
        ),
        "memory_stage_boundary_copies": Constant(
            1.0,
            "outputs of a pipeline stage held per micro-batch in flight, beside the activations for backward",
            "PipelineEngine keeps the outputs of every pipe buffer until their backward (deepspeed/runtime/pipe/engine.py)",
            "vendor",
        ),
        "memory_largest_matrix_bytes": Constant(
            0.0,
            "bytes per element of the largest matrix, held as a transient",
            "gradients are reduced in buckets of 16 bit",
            "assumed",
        ),
    },
    # Published runs with tensor parallelism are of Megatron-DeepSpeed, whose layers are cut by hand.
    recorded_software={"own_tensor_parallel": True},
    moe_grid="folded",
    default_strategy={"zero": 1},
)

SPACE = Space(vpp=(1,), zero=(0, 1, 2, 3))
