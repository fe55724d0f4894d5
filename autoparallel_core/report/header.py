"""The head of every answer: what was asked, of what, and what was assumed to answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import bullets, labelled, put
from autoparallel_core.search.result import Plan
from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload, Workload

_SHORT = 70
"""Assumptions up to this length share a paragraph; longer ones get a line of their own."""
_INDENT = 10


def model_line(arch: ModelArch, parameters: Mapping[str, Any]) -> str:
    """Name, size and shape of a model in one sentence."""
    total, active = float(parameters.get("text", parameters["total"])), float(parameters["active"])
    size = f"{fmt.parameters(total)} parameters"
    if active < 0.97 * total:
        size += f", {fmt.parameters(active)} active"
    if vision := parameters.get("vision"):
        size += f" (+ {fmt.parameters(float(vision))} vision)"
    kinds: dict[str, int] = {}
    for layer in arch.layers:
        kinds[layer.kind] = kinds.get(layer.kind, 0) + 1
    shape = " + ".join(f"{n} {kind}" for kind, n in kinds.items())
    mtp = f" + {len(arch.mtp)} MTP" if arch.mtp else ""
    return f"{arch.name} · {size} · {shape}{mtp} layers, hidden {arch.hidden_size:,}, vocabulary {arch.vocab_size:,}"


def cluster_line(cluster: Cluster, *, host_memory: bool = False) -> str:
    """GPUs, nodes, memory and links in one sentence; the host's memory when it matters."""
    if cluster.kinds:
        return f"{cluster.n_gpus:,} GPUs: " + "; ".join(cluster_line(k, host_memory=host_memory) for k in cluster.kinds)
    gpu = cluster.gpu
    nodes = f"{cluster.n_nodes:,} node{'s' if cluster.n_nodes > 1 else ''} of {min(cluster.gpus_per_node, cluster.n_gpus)}"
    links = " · ".join(f"{t.name} {fmt.bandwidth(t.bytes_per_s)}" for t in cluster.tiers)
    wide = gpu.wide_dtype
    peak = f" · {fmt.flops(gpu.peak_flops[wide])} {wide}" if wide in gpu.peak_flops else ""
    text = f"{cluster.n_gpus:,} × {gpu.name} · {nodes} · {fmt.memory(gpu.memory_bytes)} each{peak}"
    text += f" · HBM {fmt.bandwidth(gpu.hbm_bytes_per_s)} · {links} per GPU and direction"
    if host_memory:
        text += f" · host memory {fmt.memory(cluster.host_memory_bytes_per_node)} per node"
    return text + (f" · given: {', '.join(cluster.overrides)}" if cluster.overrides else "")


def workload_line(workload: Workload) -> str:
    """Batch, lengths and precision in one sentence."""
    if isinstance(workload, TrainingWorkload):
        text = (
            f"{fmt.plural(workload.global_batch_size, 'sequence')} × {workload.seq_len:,} tokens = {workload.tokens_per_step:,} "
            f"tokens per step · {workload.precision} · {workload.task}"
        )
        limits = [
            f"at most {workload.max_tokens_per_micro_batch:,} tokens per micro-batch"
            if workload.max_tokens_per_micro_batch
            else "",
            "" if workload.recompute_allowed else "no recompute",
            "optimizer in host memory" if workload.optimizer_cpu_offload else "",
            "" if workload.grad_reduce_in_fp32 else "gradients reduced in 16 bit",
        ]
        return " · ".join([text, *filter(None, limits)])
    return serving_line(workload)


def serving_line(workload: InferenceWorkload) -> str:
    limited = workload.goal == "latency" or workload.ttft_limit_s is not None or workload.tpot_limit_s is not None
    open_load = "requests in flight not stated" if limited else "as many requests in flight as fit"
    load = f"{fmt.plural(workload.concurrency, 'request')} in flight" if workload.concurrency else open_load
    parts = [f"{workload.isl:,} input + {workload.osl:,} output tokens per request", load]
    if workload.precision:
        parts.append(f"GEMMs in {workload.precision}")
    if workload.max_num_batched_tokens:
        parts.append(f"at most {workload.max_num_batched_tokens:,} tokens per engine step")
    if workload.max_model_len:
        parts.append(f"requests up to {workload.max_model_len:,} tokens")
    if workload.max_num_seqs:
        parts.append(f"at most {workload.max_num_seqs:,} sequences per engine step")
    if workload.kv_dtype:
        parts.append(f"KV cache in {workload.kv_dtype}")
    if workload.memory_fraction:
        parts.append(f"memory fraction {workload.memory_fraction:g}")
    if workload.request_rate_per_s:
        parts.append(f"at least {fmt.significant(workload.request_rate_per_s)} requests/s")
    if workload.ttft_limit_s:
        parts.append(f"TTFT at most {fmt.seconds(workload.ttft_limit_s)}")
    if workload.tpot_limit_s:
        parts.append(f"TPOT at most {fmt.seconds(workload.tpot_limit_s)}")
    if workload.goal != "throughput":
        parts.append(f"goal: {workload.goal}")
    if workload.accepted_length != 1:
        parts.append(f"{workload.accepted_length:g} tokens accepted per step")
    if workload.prefix_hit_rate:
        parts.append(f"{fmt.percent(workload.prefix_hit_rate)} prefix hits")
    return " · ".join(parts)


def engine_line(problem: Problem) -> str:
    """Engine, version, what it is, and what its software overlaps."""
    what = problem.engine.summary.split(": ", 1)[0]
    what = "" if what.casefold() == problem.engine.name.casefold() else what
    software = problem.software
    hidden = [name for name in ("dp", "tp", "ep", "p2p") if getattr(software, f"{name}_overlap")]
    parts = [f"{problem.engine.name} {problem.engine_version}", *([what] if what else [])]
    if problem.mode == "training":
        parts += [f"{software.attention_kernel} attention", f"overlaps {', '.join(hidden)}" if hidden else "no overlap"]
    return " · ".join(parts)


def _engine_once(problem: Problem, assumptions: Sequence[str]) -> list[str]:
    """The assumptions, that of the engine's version as a flag: the header's row already names the engine."""
    version = f"{problem.engine.name} {problem.engine_version}"
    return [f"--engine-version {problem.engine_version}" if a == version else a for a in assumptions]


def print_header(
    console: Console,
    problem: Problem,
    parameters: Mapping[str, Any],
    *,
    assumptions: Sequence[str] = (),
    extra: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    plans: Sequence[Plan] = (),
) -> None:
    """Model, cluster, engine, workload, what to know before all else (``notes``), then what was assumed.

    ``plans`` are those shown below: where one keeps state in host memory, the cluster's is stated.
    """
    from autoparallel_core.version import version

    put(console, f"autoparallel {version()} · {problem.mode}", style="bold")
    console.print()
    rows = [
        ("Model", model_line(problem.arch, parameters)),
        ("Cluster", cluster_line(problem.cluster, host_memory=any(p.memory.host_bytes_per_node for p in plans))),
        ("Engine", engine_line(problem)),
        ("Workload", workload_line(problem.workload)),
        *extra,
        *(("Note" if i == 0 else "", note) for i, note in enumerate(notes)),
    ]
    assumed = tuple(a for a in dict.fromkeys((*_engine_once(problem, assumptions), *problem.arch.notes)) if a not in notes)
    short = [note for note in assumed if len(note) <= _SHORT]
    if assumed:
        rows.append(("Assumed", " · ".join(short) or "as follows"))
    labelled(console, rows)
    bullets(console, [note for note in assumed if len(note) > _SHORT], indent=_INDENT)
    if unknown := problem.arch.unknown_fields:
        put(console, f"Config fields that were not understood: {', '.join(unknown)}", style="yellow")
