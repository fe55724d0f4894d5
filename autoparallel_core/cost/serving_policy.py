"""What holds for one serving problem before any strategy is looked at: engine policy, fractions, formats, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.quantization import FORMATS, WeightFormat, weight_format
from autoparallel_core.spec.serving import SchedulerDefaults, ServingPolicy

if TYPE_CHECKING:
    from packaging.version import Version

    from autoparallel_core.spec.op import Op, Weight
    from autoparallel_core.spec.problem import Problem

PLAIN = ("fp32", "fp16", "bf16")

ON_THE_FLY = frozenset({"attention", "mlp", "experts", "shared_experts", "mtp"})
"""Components whose matrices an engine quantises while loading; tables, heads, routers and towers stay as they are."""

DEFAULT_POLICY = ServingPolicy(
    source="no policy registered by the engine: nine tenths of the device, minus everything else",
    budget="share_of_device",
    memory_fraction=0.9,
)


def policy_for(problem: Problem) -> ServingPolicy:
    """The engine's policy for the problem's version; a plain one for engines that register none.

    Raises:
        SpecError: the version is not a version number, or no policy covers it.
    """
    policies = problem.engine.serving
    if not policies:
        return DEFAULT_POLICY
    version = _version(problem.engine_version)
    for p in policies:
        if (p.since is None or version >= _version(p.since)) and (p.until is None or version < _version(p.until)):
            plain = p.mixed_cache_models and problem.arch.model_type not in p.mixed_cache_models
            return evolve(p, mixed_cache="uniform") if plain else p
    ranges = ", ".join(f"{p.since or '…'} to {p.until or '…'}" for p in policies)
    raise SpecError(f"{problem.engine.name} {problem.engine_version} has no memory policy; there are some for {ranges}")


def _version(text: str) -> Version:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        raise SpecError(f"engine version '{text}' is not a version number such as 0.12.1") from None


def asked_format(problem: Problem) -> str | None:
    """Weight format that the user or a run record asks for instead of the checkpoint's.

    The workload's ``settings`` name any format (``weights = int4_g128``); ``precision`` those that GEMMs compute in.
    """
    return dict(problem.inference.settings).get("weights") or problem.inference.precision


def model_dtype(problem: Problem) -> str:
    """What the unquantised parts of the model are stored in: ``fp32``, ``fp16`` or ``bf16``."""
    asked = asked_format(problem)
    if asked in PLAIN:
        return str(asked)
    return problem.arch.weight_dtype if problem.arch.weight_dtype in FORMATS else "bf16"


def kv_dtype(problem: Problem) -> str:
    """KV-cache dtype: the user's, the checkpoint's, what the engine's checkpoints of its format ask for, or the model's."""
    asked = problem.inference.kv_dtype
    if asked and asked != "auto":
        return asked
    if problem.arch.kv_dtype:
        return problem.arch.kv_dtype
    quantised = problem.arch.quantization.default_format if problem.arch.quantization else None
    weights = asked_format(problem) or quantised
    return "fp8" if weights in policy_for(problem).fp8_cache_formats else model_dtype(problem)


def stored_format(problem: Problem, op: Op, weight: Weight) -> WeightFormat:
    """How one tensor lies in GPU memory: as in the checkpoint, or in the precision asked for.

    16- and 32-bit precisions undo the checkpoint's quantisation; others quantise what engines quantise while loading.
    """
    asked = asked_format(problem)
    plain = FORMATS[model_dtype(problem)]
    if asked is None or asked in PLAIN:
        return plain if weight.format is None or asked else weight_format(weight.format)
    if weight.format is not None or (weight.linear and weight.component in ON_THE_FLY and not getattr(op, "precise", False)):
        return weight_format(asked) if weight.linear else plain
    return plain


def device_bytes(problem: Problem) -> float:
    """Memory that one GPU shows: what the user states, else the preset's."""
    stated = problem.inference.device_memory_bytes
    return stated if stated is not None else problem.cluster.gpu.memory_bytes


def scheduler_limits(problem: Problem) -> SchedulerDefaults:
    """Most sequences and tokens per step: the user's, else the engine's defaults for this GPU."""
    work, gpu = problem.inference, problem.cluster.gpu
    default = next(
        (
            d
            for d in policy_for(problem).scheduler
            if device_bytes(problem) >= d.min_memory_bytes and gpu.architecture.lower() not in d.not_architectures
        ),
        SchedulerDefaults(256, 8192),
    )
    return SchedulerDefaults(
        work.max_num_seqs or default.max_num_seqs, work.max_num_batched_tokens or default.max_num_batched_tokens
    )
