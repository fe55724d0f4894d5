"""Training records: degrees, batch, software and the strategy that ran."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve

from autoparallel_core.cluster import build_cluster
from autoparallel_core.errors import SpecError
from autoparallel_core.runs.record import RunRecord
from autoparallel_core.runs.settings import nic_bytes_per_s, recompute_modules, recomputed_layers, software_changes
from autoparallel_core.runs.shared import Shared, Translated, count_of
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_core.spec.workload import TrainingWorkload

if TYPE_CHECKING:
    from autoparallel_core.spec.arch import ModelArch
    from autoparallel_core.spec.cluster import Cluster
    from autoparallel_core.spec.problem import EngineSpec

ASSUMED_SEQ_LEN = 4096
MICRO_BATCHES_PER_STAGE = 4
"""Accumulation assumed per pipeline stage when a record states no global batch: bubble of about a fifth."""
TASKS: dict[str, Literal["pretrain", "sft", "lora"]] = {"pretrain": "pretrain", "sft": "sft", "lora": "lora"}


def translate_training(shared: Shared, record: RunRecord) -> Translated:
    """Raises SpecError when the record does not say enough to be priced."""
    notes: list[str] = []
    spec = shared.engine(record)
    strategy_fields = dict(record.strategy)
    world = count_of(record.cluster.get("n_gpus"), "cluster.n_gpus")
    degrees = _degrees(strategy_fields, world, notes)
    n_gpus = world or degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"]
    cluster = _cluster(shared, record, n_gpus, notes)
    arch = shared.arch(record)
    workload, mbs = _workload(record, spec, degrees, arch, notes)
    strategy = _strategy(record, spec, degrees, mbs, notes)
    problem = shared.problem(arch, cluster, workload, record, notes)
    unstated = frozenset({"memory_gb", "memory_reserved_gb", "fits", "verdict"} if not record.workload.get("seq_len") else ())
    return Translated(problem, strategy, tuple(notes), unstated, record.strategy.get("recompute") is None)


def _cluster(shared: Shared, record: RunRecord, n_gpus: int, notes: list[str]) -> Cluster:
    c = record.cluster
    per_node = count_of(c.get("gpus_per_node"), "cluster.gpus_per_node")
    domain = record.settings.get("nvlink_domain")
    network = record.settings.get("interconnect")
    key = json.dumps([c.get("gpu"), n_gpus, per_node, domain, network])
    if not c.get("gpu"):
        raise SpecError("the record states no GPU")
    gpu = shared.host.gpu(str(c["gpu"]))
    rate = nic_bytes_per_s(str(network), per_node or gpu.gpus_per_node) if network else None
    if network and rate is None:
        notes.append(f"interconnect '{network}' gives no rate; the preset's {gpu.nic_bytes_per_s / 1e9:g} GB/s per GPU is kept")
    if key not in shared.clusters:
        if isinstance(domain, int) and domain > 0:
            gpu = evolve(gpu, scale_up_domain=domain)
        overrides = {"bw_ib": rate / 1e9} if rate else None
        shared.clusters[key] = build_cluster(gpu, n_gpus, gpus_per_node=per_node, overrides=overrides)
    return shared.clusters[key]


def _workload(
    record: RunRecord, spec: EngineSpec, d: Mapping[str, int], arch: ModelArch, notes: list[str]
) -> tuple[TrainingWorkload, int]:
    w = record.workload
    mbs = count_of(record.strategy.get("micro_batch_size"), "strategy.micro_batch_size")
    seq = count_of(w.get("seq_len"), "workload.seq_len")
    batch = count_of(w.get("global_batch_size"), "workload.global_batch_size")
    if mbs is None:
        mbs = 1
        notes.append("micro-batch size not stated: 1")
    if seq is None:
        seq = min(ASSUMED_SEQ_LEN, arch.max_position_embeddings or ASSUMED_SEQ_LEN)
        notes.append(f"sequence length not stated: {seq}, and no memory predicted")
    if batch is None:
        batch = mbs * d["dp"] * (MICRO_BATCHES_PER_STAGE * d["pp"] if d["pp"] > 1 else 1)
        notes.append(f"global batch not stated: {batch} sequences")
    if batch < mbs * d["dp"]:
        raise SpecError(f"a global batch of {batch} sequences is less than micro-batch {mbs} × dp {d['dp']}")
    changes, more = software_changes(record.settings, arch.num_layers)
    modules, unknown = recompute_modules(record.strategy.get("recompute_detail"))
    notes += more + unknown
    if modules is not None:
        changes["recompute_modules"] = modules
    assumed = tuple(str(x) for x in record.settings.get("assumed") or ())
    software = evolve(spec.software, **{**spec.recorded_software, **changes}, assumed=assumed)
    task = w.get("task") or "pretrain"
    if task not in TASKS:
        raise SpecError(f"workload.task must be one of {', '.join(TASKS)}, not '{task}'")
    if w.get("precision") is None:
        notes.append("precision not stated: bf16")
    return TrainingWorkload(
        seq_len=seq,
        global_batch_size=batch,
        precision=str(w.get("precision") or "bf16"),
        task=TASKS[task],
        optimizer_cpu_offload=True if record.settings.get("optimizer_cpu_offload") else None,
        grad_reduce_in_fp32=software.grad_dtype == "fp32",
        software=software,
    ), mbs


def _degrees(s: Mapping[str, Any], world: int | None, notes: list[str]) -> dict[str, int]:
    """Parallel degrees; dp follows from the world, unstated cp, ep, etp and vpp are 1. Raises SpecError without tp or pp."""
    d = {k: count_of(s.get(k), f"strategy.{k}") for k in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")}
    missing = [k for k in ("tp", "pp") if d[k] is None]
    if missing:
        raise SpecError(f"the record does not state {' and '.join(missing)}")
    out = {k: v or 1 for k, v in d.items()}
    inner = out["tp"] * out["pp"] * out["cp"]
    if world is not None:
        if world % inner:
            raise SpecError(f"tp {out['tp']} × pp {out['pp']} × cp {out['cp']} = {inner} does not divide {world} GPUs")
        if d["dp"] is None:
            notes.append(f"dp not stated: {world // inner}")
        elif out["dp"] != world // inner:
            notes.append(f"dp {out['dp']} does not fill {world} GPUs; {world // inner} is taken")
        out["dp"] = world // inner
    elif d["dp"] is None:
        raise SpecError("the record states neither the number of GPUs nor dp")
    else:
        notes.append(f"number of GPUs not stated: {inner * out['dp']}")
    return out


def _strategy(record: RunRecord, spec: EngineSpec, d: Mapping[str, int], mbs: int, notes: list[str]) -> Strategy:
    s, ranks = record.strategy, d["dp"] * d["cp"]
    zero = s.get("zero_stage")
    if zero is None:
        zero = spec.default_strategy.get("zero", 0)
        notes.append(f"ZeRO stage not stated: {zero}")
    if zero not in (0, 1, 2, 3) or isinstance(zero, bool):
        raise SpecError(f"strategy.zero_stage must be 0 to 3, not {zero!r}")
    sharding = s.get("fsdp") if isinstance(s.get("fsdp"), Mapping) else {}
    assert isinstance(sharding, Mapping)
    if sharding.get("reshard_after_forward") is False and zero == 3:
        zero = 2
    recompute = s.get("recompute")
    if recompute is None:
        recompute = RECOMPUTE[spec.default_strategy.get("recompute", 0)]
        notes.append(f"recompute not stated: {recompute}")
    if recompute not in RECOMPUTE:
        raise SpecError(f"strategy.recompute must be one of {', '.join(RECOMPUTE)}, not {recompute!r}")
    sp = s.get("sequence_parallel")
    if sp is None and d["tp"] > 1:
        notes.append("sequence parallelism not stated: on")
    vpp = d["vpp"] if d["pp"] > 1 else 1
    return Strategy(
        tp=d["tp"], sp=int(d["tp"] > 1 and (sp is None or bool(sp))), pp=d["pp"], vpp=vpp, cp=d["cp"],
        ep=d["ep"], etp=d["etp"], dp=d["dp"], shard=_shard(sharding, record.settings, ranks, zero, notes), zero=int(zero),
        mbs=mbs,
        recompute=RECOMPUTE.index(recompute),
        recompute_layers=recomputed_layers(s.get("recompute_detail"), vpp) if recompute == "full" else 0,
        offload=int(bool(record.settings.get("optimizer_cpu_offload"))),
    )  # fmt: skip


def _shard(sharding: Mapping[str, Any], settings: Mapping[str, Any], ranks: int, zero: int, notes: list[str]) -> int:
    """Ranks of the shard group: as stated, else all of dp·cp."""
    if zero == 0:
        return 1
    stated = [v for k, v in sharding.items() if re.search(r"(^|_)(shard|shard_group|fsdp)$", k) and isinstance(v, int)]
    if zero == 1 and isinstance(settings.get("zero1_group"), int):
        stated = [settings["zero1_group"]]
    group = next((v for v in stated if not isinstance(v, bool) and v >= 1), ranks)
    if ranks % group:
        notes.append(f"shard group {group} does not divide dp × cp = {ranks}; all ranks are taken")
        return ranks
    return group
