"""Identity, defaults and constants of the engine."""

from __future__ import annotations

from autoparallel_core.spec.problem import Constant, EngineSpec
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.workload import Software

FSDP = EngineSpec(
    name="fsdp",
    modes=("training",),
    default_version="1.15.0",
    oldest_version="1.10.0",
    summary=(
        "PyTorch FSDP2 through accelerate: parameters, gradients and optimizer sharded over data-parallel ranks, gathered layer "
        "by layer; no pipeline, expert all-to-all not hidden"
    ),
    software=Software(
        attention_kernel="flash2",
        elementwise="eager",
        dp_overlap=True,
        dispatcher="alltoall",
        cp_comm="all_gather",
        grad_dtype="fp32",
        recompute_modules=("op",),
    ),
    constants={
        "memory_largest_matrix_bytes": Constant(
            0.0,
            "bytes per element of the largest matrix, held as a transient",
            "gradients are reduced into their shard; there is no whole-matrix fp32 copy (torch.distributed.fsdp)",
            "assumed",
        ),
    },
    moe_grid="folded",
    default_strategy={"zero": 3},
)
"""Versions are accelerate's. ``zero`` 3 is reshard_after_forward, 2 keeps the gathered parameters until the backward."""

SPACE = Space(pp=(1,), vpp=(1,), etp=(1,), zero=(2, 3), hsdp=True)
