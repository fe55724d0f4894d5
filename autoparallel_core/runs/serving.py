"""Serving records: the checkpoint as deployed, the instance layout and the load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve

from autoparallel_core.cluster import build_cluster
from autoparallel_core.errors import SpecError, UnknownPlugin
from autoparallel_core.runs.shared import Translated, count_of
from autoparallel_core.runs.weights import deployed_config
from autoparallel_core.search.facts import has_latent_attention, is_moe
from autoparallel_core.spec.strategy import Strategy
from autoparallel_core.spec.workload import InferenceWorkload

if TYPE_CHECKING:
    from autoparallel_core.runs.record import RunRecord
    from autoparallel_core.runs.shared import Shared
    from autoparallel_core.spec.arch import ModelArch
    from autoparallel_core.spec.cluster import Cluster, Gpu
    from autoparallel_core.spec.serving import ServingPolicy

GIB = float(1 << 30)
SPEEDS = frozenset({"ttft_ms", "tpot_ms", "output_tok_s", "tok_s_per_gpu", "total_tok_s", "decode_tok_s", "prefill_tok_s"})
BUDGET = frozenset({"kv_cache_gib_per_gpu", "kv_tokens"})
"""What depends on the device's memory."""
SHORT_REQUEST = 128


def translate_serving(shared: Shared, record: RunRecord) -> Translated:
    """Raises SpecError when the record does not say enough to be priced."""
    notes: list[str] = []
    unknown: set[str] = set()
    policies = shared.engine(record).serving
    arch = _arch(shared, record, notes)
    n_gpus, strategy = _layout(record, arch, notes, policies[-1] if policies else None)
    cluster = _cluster(shared, record, n_gpus, notes, unknown)
    workload = _workload(record, notes, unknown, policies[-1] if policies else None)
    problem = shared.problem(arch, cluster, workload, record, notes)
    return Translated(problem, strategy, tuple(notes), frozenset(unknown))


def _arch(shared: Shared, record: RunRecord, notes: list[str]) -> ModelArch:
    from autoparallel_core.reading.source import read_config_files

    if record.model is None:
        raise SpecError("the record states no model")
    weights, dtype = record.settings.get("weights"), record.settings.get("weight_dtype")
    gpu = _known_gpu(shared, record.cluster.get("gpu"))
    if weights is None and dtype in {None, "auto"} and gpu and "bf16" not in gpu.peak_flops and "fp16" in gpu.peak_flops:
        dtype = "float16"
        notes.append(f"{gpu.name} has no bf16: weights in fp16")
    key = f"{record.directory}|{record.model}|{weights}|{dtype}|{record.name if weights else ''}"
    if key in shared.archs:
        notes += shared.arch_notes.get(key, ())
        return shared.archs[key]
    if isinstance(record.model, str):
        path = record.directory / record.model
        if not path.exists():
            return shared.arch(record)
        name, config, quant = read_config_files(path)
    else:
        name, config, quant = record.name or record.id, record.model, None
    changed, note = deployed_config(config, weights=weights, dtype=dtype, name=record.name)
    if note:
        notes.append(note)
        shared.arch_notes[key] = (note,)
    from autoparallel_core.models import build_arch

    sibling = quant if changed is config else None
    shared.archs[key] = build_arch(changed, name=record.name or name, host=shared.host, quant_config=sibling)
    return shared.archs[key]


def _whole(value: Any, what: str) -> int | None:
    return count_of(value, what)


def _layout(record: RunRecord, arch: ModelArch, notes: list[str], policy: ServingPolicy | None) -> tuple[int, Strategy]:
    """One instance is tp·pp·dp GPUs when dp is attention parallelism (experts, latent attention), else dp counts instances."""
    s = record.strategy
    n = _whole(record.cluster.get("n_gpus"), "cluster.n_gpus")
    pp, dp = _whole(s.get("pp"), "strategy.pp") or 1, _whole(s.get("dp"), "strategy.dp") or 1
    tp = _whole(s.get("tp"), "strategy.tp")
    if tp is None:
        if n is None:
            raise SpecError("the record states neither tp nor the number of GPUs")
        tp = max(n // (pp * dp), 1)
        notes.append(f"tp not stated: {tp}")
    offline = _load(str(record.workload.get("load") or "offline")) == "offline"
    recipe = policy is not None and policy.throughput_attention_dp and offline and is_moe(arch)
    if recipe and s.get("ep") is None and dp == 1 and tp > 1:
        tp, dp = 1, tp
        notes.append(f"expert layout not stated: attention dp {dp}, as the engine documents for maximum throughput")
    inside = dp if is_moe(arch) or has_latent_attention(arch) else 1
    gpus = tp * pp * inside
    n = n or gpus * (dp // inside)
    if n % gpus:
        raise SpecError(f"tp {tp} × pp {pp} × dp {inside} = {gpus} does not divide {n} GPUs")
    ep = _whole(s.get("ep"), "strategy.ep") or 1
    if not is_moe(arch):
        ep = 1
    if (tp * inside) % ep:
        raise SpecError(f"ep {ep} does not divide tp {tp} × dp {inside} = {tp * inside} ranks of an instance")
    etp = tp * inside // ep if is_moe(arch) else 1
    return n, Strategy(tp=tp, sp=int(tp > 1), pp=pp, ep=ep, etp=etp, dp=n // gpus, attn_dp=inside)


def _cluster(shared: Shared, record: RunRecord, n_gpus: int, notes: list[str], unknown: set[str]) -> Cluster:
    """The record's GPUs; a memory-only record of a GPU that no plugin knows is counted on a stand-in without its speeds."""
    name, device = record.cluster.get("gpu"), record.cluster.get("device_memory_gib")
    per_node = _whole(record.cluster.get("gpus_per_node"), "cluster.gpus_per_node")
    key = f"serving|{name}|{n_gpus}|{per_node}|{device if not name else ''}"
    only_memory = not (SPEEDS & {k for k, v in record.measured.items() if v is not None})
    known = _known_gpu(shared, name)
    if known is None and not only_memory:
        if not name:
            raise SpecError("the record states no GPU")
        shared.host.gpu(str(name))  # raises, naming the near ones
    gpu = known or min(shared.host.gpus().values(), key=lambda g: (not g.default, g.name))
    if known is None:
        unknown |= SPEEDS
        what = f"GPU '{name}' is not known" if name else "GPU not stated"
        if device is None:
            unknown |= BUDGET
            notes.append(f"{what} and its memory neither: weights only")
        else:
            notes.append(f"{what}: memory arithmetic on its {device} GiB, no speeds")
            gpu = evolve(gpu, memory_bytes=float(device) * GIB)
        gpu = evolve(gpu, name="unknown GPU", architecture="")
    if key not in shared.clusters:
        nodes = per_node or (gpu.gpus_per_node if n_gpus % gpu.gpus_per_node == 0 or n_gpus < gpu.gpus_per_node else n_gpus)
        shared.clusters[key] = build_cluster(gpu, n_gpus, gpus_per_node=min(nodes, n_gpus) if n_gpus < nodes else nodes)
    return shared.clusters[key]


def _known_gpu(shared: Shared, name: Any) -> Gpu | None:
    try:
        return shared.host.gpu(str(name)) if name else None
    except UnknownPlugin:
        return None


def _load(text: str) -> str:
    t = text.lower()
    if t.startswith("offline") or "offline" in t:
        return "offline"
    return "static" if t.startswith(("static", "single request")) else "closed"


def _kv_dtype(text: Any) -> str | None:
    """``bf16 (auto)`` is bf16; ``model dtype (auto)`` and nothing are the engine's choice."""
    m = re.match(r"\s*(bf16|fp16|fp32|fp8|int8|nvfp4|fp4)", str(text or "").lower())
    return m[1] if m else None


def _workload(
    record: RunRecord, notes: list[str], unknown: set[str], policy: ServingPolicy | None
) -> InferenceWorkload:  # fmt: skip
    w, s = record.workload, record.settings
    load = _load(str(w.get("load") or "offline"))
    isl, osl = _whole(w.get("isl"), "workload.isl"), _whole(w.get("osl"), "workload.osl")
    longest = _whole(s.get("max_model_len"), "settings.max_model_len")
    if isl is None:
        isl = min(SHORT_REQUEST, (longest or 2 * SHORT_REQUEST) - 1)
        unknown |= SPEEDS
        notes.append("request lengths not stated: memory only")
    if osl is None:
        osl = 1
        if "request lengths" not in " ".join(notes):
            notes.append("output length not stated: 1 token")
    concurrency = _whole(w.get("concurrency"), "workload.concurrency") or _whole(w.get("batch"), "workload.batch")
    if load != "offline" and concurrency is None:
        load = "offline"
        notes.append("concurrency not stated: as many requests as fit")
    requests = _whole(w.get("requests"), "workload.requests")
    if load == "offline" and requests is None and policy is not None and policy.benchmark_requests:
        requests = policy.benchmark_requests
        notes.append(f"number of requests not stated: {requests}, as in the engine's benchmark documentation")
    sequences = _whole(s.get("max_num_seqs"), "settings.max_num_seqs")
    if sequences is None and (m := re.search(r"max-num-seqs (\d+)", str(w.get("load") or ""))):
        sequences = int(m[1])
    fraction = _first(s, "gpu_memory_utilization", "mem_fraction_static", "free_gpu_memory_fraction", "memory_fraction")
    device = record.cluster.get("device_memory_gib")
    return InferenceWorkload(
        isl=isl,
        osl=osl,
        concurrency=None if load == "offline" else concurrency,
        requests=requests if load == "offline" else None,
        load=load,  # type: ignore[arg-type]  # one of the three words
        kv_dtype=_kv_dtype(s.get("kv_dtype")),
        prefix_hit_rate=float(s.get("prefix_hit_rate") or 0.0),
        max_num_seqs=sequences,
        max_num_batched_tokens=_whole(s.get("max_num_batched_tokens"), "settings.max_num_batched_tokens"),
        max_model_len=longest,
        memory_fraction=None if fraction is None else float(fraction),
        device_memory_bytes=None if device is None else float(device) * GIB,
    )


def _first(settings: Mapping[str, Any], *keys: str) -> Any:
    return next((settings[k] for k in keys if settings.get(k) is not None), None)
