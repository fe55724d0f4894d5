"""Identity, defaults and constants of the engine."""

from __future__ import annotations

from autoparallel_core.spec.problem import Ability, EngineSpec
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.workload import Software

MEGATRON = EngineSpec(
    name="megatron",
    modes=("training",),
    default_for=("training",),
    default_version="0.19.2",
    oldest_version="0.9.0",
    summary=(
        "Megatron-Core (Megatron-LM, Megatron-Bridge, NeMo): tensor, sequence, context, expert and interleaved pipeline "
        "parallelism with a distributed optimizer; hides expert all-to-all behind computation where its schedule allows"
    ),
    software=Software(
        attention_kernel="fused",
        elementwise="fused",
        dp_overlap=True,
        tp_overlap=False,
        ep_overlap=False,
        p2p_overlap=True,
        dispatcher="alltoall",
        grad_dtype="fp32",
        assumed=("ep_overlap",),
    ),
    # Performance recipes of Megatron-Bridge set grad_reduce_in_fp32=False; Megatron-LM's own default for bf16 is fp32.
    recorded_software={"grad_dtype": "bf16"},
    abilities={
        "uneven_stages": Ability("0.13.0", "--pipeline-model-parallel-layout"),
        "host_activations": Ability("0.9.0", "--cpu-offloading-num-layers, without pipeline and recompute"),
        "recompute_by_stage": Ability("0.9.0", "--recompute-method block, with a --recompute-num-layers of each rank's own"),
    },
    moe_grid="folded",
    default_strategy={"zero": 1},
    decides={"ep_overlap": "on with ep > 1 where Megatron allows it (no pipeline or an interleaved one, no full recompute)"},
)
"""Versions are Megatron-Core's. ``ep_overlap`` is assumed: :mod:`autoparallel_megatron.overlap` decides it per strategy."""

SPACE = Space(zero=(0, 1, 2, 3))
