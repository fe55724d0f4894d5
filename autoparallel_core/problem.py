"""From parsed parts to one Problem: constants merged, software settled, contradictions refused, assumptions listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve, fields_dict

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import did_you_mean
from autoparallel_core.spec.problem import Constant, EngineSpec, Problem
from autoparallel_core.spec.quantization import weight_format
from autoparallel_core.spec.workload import PRECISIONS, InferenceWorkload, Software, TrainingWorkload, Workload

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.arch import ModelArch
    from autoparallel_core.spec.cluster import Cluster, Gpu

OPERANDS = {"mxfp8": "fp8", "nvfp4": "fp4"}
"""The tensor-core dtype of a precision, where it is not its own name."""

OF_EXPERTS = ("ep_overlap", "dispatcher")
"""Software settings that mean nothing for a model without experts."""


def make_problem(
    arch: ModelArch,
    cluster: Cluster,
    workload: Workload,
    *,
    engine: str,
    engine_version: str | None = None,
    software: Mapping[str, Any] | None = None,
    host: Host,
) -> Problem:
    """Everything a question holds.

    Args:
        arch: the model.
        cluster: GPUs and network.
        workload: what runs; its type decides the mode.
        engine: name of an engine plugin that runs this mode.
        engine_version: None for the version that the plugin describes by default.
        software: fields of :class:`~autoparallel_core.spec.workload.Software` that the user states; they override the
            workload's (a run record's) software, which overrides the engine's.
        host: plugins.

    Raises:
        UnknownPlugin: no such engine.
        SpecError: the engine does not run this mode, or a figure is not positive, or the GPU lacks the precision, or a
            software field is unknown.
    """
    mode: Literal["training", "inference"] = "training" if isinstance(workload, TrainingWorkload) else "inference"
    spec = host.engine(engine, mode)
    if isinstance(workload, TrainingWorkload):
        _check_training(workload, cluster)
    else:
        _check_inference(workload, cluster)
    if cluster.n_gpus < 1:
        raise SpecError(f"the number of GPUs must be at least 1, not {cluster.n_gpus}")
    settled = _software(spec, workload, software or {})
    return Problem(
        arch=arch,
        cluster=cluster,
        workload=workload,
        engine=spec,
        engine_version=engine_version or spec.default_version,
        constants=_constants(spec),
        software=settled,
        assumptions=(*_assumptions(arch, spec, engine_version, settled), *_assumed_of_gpu(cluster.gpu, arch, workload, settled)),
    )


def _constants(spec: EngineSpec) -> Mapping[str, Constant]:
    """The core's constants with the engine's in their place, and the engine's own."""
    from autoparallel_core.cost.constants import core_constants

    return {**core_constants(), **spec.constants}


def _software(spec: EngineSpec, workload: Workload, stated: Mapping[str, Any]) -> Software:
    known = [n for n in fields_dict(Software) if n != "assumed"]
    for name in stated:
        if name not in known:
            raise SpecError(f"unknown software setting '{name}'; {did_you_mean(name, known)}")
    base = workload.software if isinstance(workload, TrainingWorkload) and workload.software else spec.software
    changes = dict(stated)
    if isinstance(workload, TrainingWorkload) and not workload.grad_reduce_in_fp32:
        changes.setdefault("grad_dtype", "bf16")
    return evolve(base, **changes, assumed=tuple(n for n in base.assumed if n not in changes))


def _assumptions(arch: ModelArch, spec: EngineSpec, version: str | None, software: Software) -> Iterable[str]:
    yield from arch.notes
    if version is None:
        yield f"{spec.name} {spec.default_version}"
    elif note := unknown_version(spec, version):
        yield note
    for name in software.assumed:
        if name in OF_EXPERTS and not arch.num_experts:
            continue
        yield f"{name.replace('_', ' ')}: {spec.decides.get(name) or _words(getattr(software, name))}"


IN_SITU = ("all_reduce_bytes_per_s", "all_reduce_latency_s")
"""Training figures for which the link's own stand in when a GPU's data has none."""


def _assumed_of_gpu(gpu: Gpu, arch: ModelArch, workload: Workload, software: Software) -> Iterable[str]:
    """Rates of the GPU that the question rests on and nobody measured."""
    if isinstance(workload, TrainingWorkload):
        unused = {f"attention_{k}" for k in ("fused", "flash2") if k != software.attention_kernel}
        low = {"fp8": "gemm_fp8", "mxfp8": "gemm_fp8", "nvfp4": "gemm_fp4"}
        unused |= {k for k in low.values() if k != low.get(workload.precision)}
        keys = [k for k in gpu.training if k not in unused]
        assumed = [k for k in keys if gpu.sources.get(f"training.{k}", "").startswith("assumed")]
        if missing := [k for k in IN_SITU if k not in gpu.training]:
            yield f"{gpu.name} states no {' and no '.join(missing)}: the link's own figures are taken"
    else:
        stored = {w.format or arch.weight_dtype for layer in arch.layers for w in layer.weights() if w.linear}
        wanted = {workload.precision or "", *(weight_format(f).compute for f in stored), *(f.split("_")[0] for f in stored)}
        tables = {"gemm": gpu.gemm, "expert_gemm": gpu.expert_gemm if arch.num_experts else {}}
        guessed = {f"{n}.{k}": k.split("_")[0] for n, rows in tables.items() for k, e in rows.items() if e.origin == "assumed"}
        assumed = [name for name, dtype in guessed.items() if dtype in wanted]
        assumed += [f"attention.{k}" for k, e in gpu.attention.items() if e.origin == "assumed" and "@" not in k]
    if assumed:
        shown = ", ".join(assumed[:4]) + (f" and {len(assumed) - 4} more" if len(assumed) > 4 else "")
        yield f"rates of {gpu.name} without a measurement: {shown} (sources: autoparallel gpus show {gpu.name})"


def unknown_version(spec: EngineSpec, version: str) -> str:
    """That an engine's version lies outside those whose rules are known; nothing when it does not.

    Raises:
        SpecError: it is no version number.
    """
    from autoparallel_core.search.common_rules import parse_version

    v, newest = parse_version(version), parse_version(spec.default_version)
    if spec.oldest_version is not None and v < parse_version(spec.oldest_version):
        return (
            f"{spec.name} {version} is older than {spec.oldest_version}, the oldest version whose rules and memory policies are "
            "known; those of the oldest are taken, and this version may lack what they allow"
        )
    if v > newest and v.release[:2] > newest.release[:2]:
        return f"{spec.name} {version} is newer than {spec.default_version}, the newest whose rules are known; those are taken"
    return ""


def _words(value: Any) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _check_training(w: TrainingWorkload, cluster: Cluster) -> None:
    _positive("the sequence length", w.seq_len)
    _positive("the global batch size", w.global_batch_size)
    if w.max_tokens_per_micro_batch is not None and w.max_tokens_per_micro_batch < w.seq_len:
        raise SpecError(
            f"a micro-batch of at most {w.max_tokens_per_micro_batch} tokens cannot hold one sequence of {w.seq_len}; "
            f"allow at least {w.seq_len}"
        )
    if w.task == "lora":
        _positive("the LoRA rank", w.lora_rank)
    _check_precision(w.precision, cluster)


def _check_inference(w: InferenceWorkload, cluster: Cluster) -> None:
    _positive("the input length (isl)", w.isl)
    _positive("the output length (osl)", w.osl)
    for what, value in (
        ("the concurrency", w.concurrency),
        ("the most sequences at once", w.max_num_seqs),
        ("the most batched tokens", w.max_num_batched_tokens),
        ("the device memory", w.device_memory_bytes),
        ("the time-to-first-token limit", w.ttft_limit_s),
        ("the time-per-token limit", w.tpot_limit_s),
        ("the request rate", w.request_rate_per_s),
    ):
        if value is not None:
            _positive(what, value)
    if w.max_model_len is not None and w.max_model_len < w.context_tokens:
        raise SpecError(
            f"requests of {w.isl} + {w.osl} tokens do not fit a model length of {w.max_model_len}; "
            f"allow at least {w.context_tokens}"
        )
    if not 0 <= w.prefix_hit_rate <= 1:
        raise SpecError(f"the prefix hit rate must be between 0 and 1, not {w.prefix_hit_rate}")
    if w.accepted_length < 1:
        raise SpecError(f"the accepted length per step must be at least 1, not {w.accepted_length}")
    if w.memory_fraction is not None and not 0 < w.memory_fraction <= 1:
        raise SpecError(f"the memory fraction must be above 0 and at most 1, not {w.memory_fraction}")
    if w.precision is not None:
        _check_precision(w.precision, cluster)


def _positive(what: str, value: float) -> None:
    if not value > 0:
        raise SpecError(f"{what} must be positive, not {value}")


def _check_precision(precision: str, cluster: Cluster) -> None:
    if precision not in PRECISIONS:
        raise SpecError(f"unknown precision '{precision}'; {did_you_mean(precision, PRECISIONS)}")
    if precision != "fp32":
        cluster.gpu.peak(OPERANDS.get(precision, precision))
