"""Clusters from a GPU preset and a count: which GPUs reach each other how fast.

Tiers come from the preset: the scale-up domain, the rest of the node when the domain is smaller than it, and the
network with its NIC per GPU. A domain larger than the node (a rack-scale fabric) spans nodes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import cattrs
from attrs import asdict, evolve, field, frozen

from autoparallel_core.cluster_overrides import override
from autoparallel_core.errors import SpecError
from autoparallel_core.spec.cluster import Cluster, Gpu, Tier
from autoparallel_core.strict import strict_converter

if TYPE_CHECKING:
    from autoparallel_core.host import Host

SCALE_OUT_LATENCY_S = 12e-6
SCALE_OUT_LATENCY_SOURCE = (
    "NCCL send/recv of 2 KiB: 17 µs across nodes against 5 µs inside one (network profiles of vidur, arXiv 2405.05465)"
)
NODE_LATENCY_S = 10e-6
NODE_LATENCY_SOURCE = "assumed: a copy through host bridges"
SCALE_UP_LATENCY_S = 5e-6
SCALE_UP_LATENCY_SOURCE = "NCCL send/recv of 2 KiB inside one node: 5 µs (network profiles of vidur, arXiv 2405.05465)"


def build_cluster(
    gpu: Gpu,
    n_gpus: int,
    *,
    gpus_per_node: int | None = None,
    overrides: Mapping[str, float] | None = None,
    tiers: Sequence[Tier] | None = None,
) -> Cluster:
    """A cluster of one kind of GPU.

    Args:
        gpu: the preset.
        n_gpus: GPUs in all; whole nodes, or fewer than one node.
        gpus_per_node: None takes the preset's.
        overrides: what the user knows better, by flag name: ``gpu_memory_gb``, ``host_memory_gb`` (decimal GB),
            ``gpu_flops`` (TFLOP/s), ``hbm_gb_per_s``, ``bw_nvlink``, ``bw_ib`` (GB/s per GPU and direction). A number of
            10⁹ and more is taken as SI base units (bytes, FLOP/s, bytes/s). None values are skipped.
        tiers: the whole network, innermost first, instead of the one derived from the preset.

    Returns:
        The cluster; its ``gpu`` carries the overrides, and the scale-up domain that this node size leaves.

    Raises:
        SpecError: counts that are not positive whole numbers or do not fill nodes, an unknown or implausible override,
            tiers that do not nest.
    """
    per_node = gpu.gpus_per_node if gpus_per_node is None else gpus_per_node
    _check_counts(gpu, n_gpus, per_node)
    recorded: list[str] = []
    for key, value in (overrides or {}).items():
        if value is not None:
            gpu, text = override(gpu, key, value)
            recorded.append(text)
    if gpus_per_node is not None and gpus_per_node != gpu.gpus_per_node:
        recorded.append(f"gpus_per_node={gpus_per_node}")
    spans_nodes = gpu.scale_up_domain > gpu.gpus_per_node
    domain = _rack(gpu.scale_up_domain, n_gpus, per_node) if spans_nodes else min(gpu.scale_up_domain, per_node)
    network = tuple(tiers) if tiers is not None else preset_tiers(gpu, n_gpus, per_node, domain)
    _check_tiers(network, n_gpus)
    return Cluster(
        gpu=evolve(gpu, scale_up_domain=domain),
        n_gpus=n_gpus,
        gpus_per_node=per_node,
        tiers=network,
        host_memory_bytes_per_node=gpu.host_memory_bytes_per_node,
        overrides=tuple(recorded),
    )


def preset_tiers(gpu: Gpu, n_gpus: int, gpus_per_node: int, domain: int) -> tuple[Tier, ...]:
    """Scale-up domain, rest of the node, network; each only where it joins GPUs that the one before does not."""
    tiers: list[Tier] = []
    if domain > 1 or (n_gpus == 1 and gpu.scale_up_domain > 1):
        curve = max((c for c in gpu.collectives.get("all_reduce", ()) if c.ranks <= domain), key=lambda c: c.ranks, default=None)
        tiers.append(
            Tier(
                "scale-up",
                min(domain, n_gpus),
                gpu.scale_up_bytes_per_s,
                curve.latency_s if curve else SCALE_UP_LATENCY_S,
                f"{_source(gpu, 'scale_up_bytes_per_s')}; latency: {curve.source if curve else SCALE_UP_LATENCY_SOURCE}",
            )
        )
    if (domain < gpus_per_node and n_gpus > domain) or not tiers:
        if domain == 1:
            rate, source = gpu.scale_up_bytes_per_s, _source(gpu, "scale_up_bytes_per_s")
        elif gpu.host_link_bytes_per_s is not None:
            rate, source = gpu.host_link_bytes_per_s, _source(gpu, "host_link_bytes_per_s")
        else:
            raise SpecError(
                f"{gpu.name} states no host link, so its {gpus_per_node} GPUs per node cannot talk beyond the scale-up "
                f"domain of {domain}; use gpus_per_node {domain} or describe the tiers in a cluster file"
            )
        tiers.append(Tier("node", min(gpus_per_node, n_gpus), rate, NODE_LATENCY_S, f"{source}; latency: {NODE_LATENCY_SOURCE}"))
    if n_gpus > tiers[-1].ranks:
        source = f"{_source(gpu, 'nic_bytes_per_s')}; latency: {SCALE_OUT_LATENCY_SOURCE}"
        tiers.append(Tier("scale-out", n_gpus, gpu.nic_bytes_per_s, SCALE_OUT_LATENCY_S, source))
    return tuple(tiers)


def _source(gpu: Gpu, figure: str) -> str:
    return gpu.sources.get(figure, f"preset of {gpu.name}")


def _rack(domain: int, n_gpus: int, gpus_per_node: int) -> int:
    """GPUs used per fabric domain: the GPUs spread evenly over domains of whole nodes when at least half of each is used."""
    if n_gpus <= domain:
        return domain
    for domains in range(-(-n_gpus // domain), 2 * n_gpus // domain + 1):
        used, rest = divmod(n_gpus, domains)
        if rest == 0 and used % gpus_per_node == 0:
            return used
    return domain


def _check_counts(gpu: Gpu, n_gpus: int, per_node: int) -> None:
    for name, value in (("n_gpus", n_gpus), ("gpus_per_node", per_node)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(
                f"{name} must be a positive whole number, not {value!r} (a node of {gpu.name} has {gpu.gpus_per_node})"
            )
    if n_gpus > per_node and n_gpus % per_node:
        below = n_gpus // per_node * per_node
        raise SpecError(
            f"{n_gpus} GPUs do not fill nodes of {per_node}; use {below} or {below + per_node} GPUs, or another gpus_per_node"
        )


def _check_tiers(tiers: Sequence[Tier], n_gpus: int) -> None:
    if not tiers:
        raise SpecError("a cluster needs at least one network tier")
    for t in tiers:
        if t.ranks < 1 or not t.bytes_per_s > 0 or not t.latency_s >= 0:
            raise SpecError(f"network tier '{t.name}': ranks, bytes per second must be positive and latency not negative: {t}")
    for inner, outer in pairwise(tiers):
        last = outer is tiers[-1]  # the outermost may end in a group that is not full
        if outer.ranks <= inner.ranks or (outer.ranks % inner.ranks and not last):
            raise SpecError(
                f"network tier '{outer.name}' of {outer.ranks} GPUs does not hold whole groups of '{inner.name}', "
                f"which has {inner.ranks}"
            )
    if tiers[-1].ranks < n_gpus:
        raise SpecError(f"the outermost network tier '{tiers[-1].name}' joins {tiers[-1].ranks} GPUs, the cluster has {n_gpus}")


@frozen(kw_only=True)
class _Group:
    """``[[gpus]]``: GPUs of one kind."""

    type: str
    nodes: int | None = None
    count: int | None = None
    gpus_per_node: int | None = None
    gpu_memory_gb: float | None = None
    host_memory_gb: float | None = None
    gpu_flops: float | None = None
    hbm_gb_per_s: float | None = None
    bw_nvlink: float | None = None
    bw_ib: float | None = None


@frozen(kw_only=True)
class _NetworkTier:
    """``[[network]]``: a level beyond the node or fabric, innermost first."""

    name: str
    gpus: int | None = None
    """GPUs that one group of this level joins; the last level may leave it out and then joins all."""
    gb_per_s: float | None = None
    """Per GPU and direction before oversubscription; None: the NIC."""
    oversubscription: float = 1.0
    latency_us: float = SCALE_OUT_LATENCY_S * 1e6


@frozen(kw_only=True)
class _ClusterFile:
    gpus: tuple[_Group, ...]
    network: tuple[_NetworkTier, ...] = field(default=())


def read_cluster_toml(path: Path | str, host: Host) -> Cluster:
    """A cluster described in a file (docs/how-to/describe-a-cluster.md).

    Raises:
        SpecError: the file is missing, not TOML, has an unknown key or a value of the wrong type, gives network levels
            for GPUs of several kinds, or describes a cluster that :func:`build_cluster` refuses.
        UnknownPlugin: no plugin knows the GPU.
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise SpecError(f"cluster file {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise SpecError(f"cluster file {path}: not valid TOML: {e}") from e
    try:
        parsed = strict_converter().structure(raw, _ClusterFile)
    except cattrs.BaseValidationError as e:
        raise SpecError(f"cluster file {path}: {'; '.join(cattrs.transform_error(e))}") from e
    try:
        return _from_file(parsed, host)
    except SpecError as e:
        raise type(e)(f"cluster file {path}: {e}") from e


def _from_file(parsed: _ClusterFile, host: Host) -> Cluster:
    if not parsed.gpus:
        raise SpecError("no [[gpus]] group")
    kinds = [(host.gpu(group.type), group) for group in parsed.gpus]
    gpu, first = kinds[0]
    same = [evolve(group, type=gpu.name, nodes=None, count=None) for _, group in kinds]
    if any(g is not gpu for g, _ in kinds) or any(s != same[0] for s in same):
        return _mixed(kinds, parsed)
    n_gpus = sum(_count(g, group) for g, group in kinds)
    cluster = _of_kind(gpu, first, n_gpus)
    if not parsed.network:
        return cluster
    network = [t for t in cluster.tiers if t.name != "scale-out"]
    for level in parsed.network:
        if network[-1].ranks < n_gpus:  # a small cluster ends before the wider levels begin
            network.append(_tier(level, cluster, last=level is parsed.network[-1]))
    _check_tiers(network, n_gpus)
    return evolve(cluster, tiers=tuple(network))


def _of_kind(gpu: Gpu, group: _Group, n_gpus: int) -> Cluster:
    keys = ("type", "nodes", "count", "gpus_per_node")
    overrides = {k: v for k, v in asdict(group).items() if k not in keys}
    return build_cluster(gpu, n_gpus, gpus_per_node=group.gpus_per_node, overrides=overrides)


def _mixed(groups: Sequence[tuple[Gpu, _Group]], parsed: _ClusterFile) -> Cluster:
    """A cluster of several kinds: each its own part, the slowest NIC between them."""
    if parsed.network:
        raise SpecError("[[network]] levels need GPUs of one kind; for several kinds give each group's bw_ib")
    counts: dict[_Group, int] = {}
    presets: dict[_Group, Gpu] = {}
    for gpu, group in groups:
        kind = evolve(group, type=gpu.name, nodes=None, count=None)
        counts[kind] = counts.get(kind, 0) + _count(gpu, group)
        presets[kind] = gpu
    parts = tuple(_of_kind(presets[kind], kind, n) for kind, n in counts.items())
    first, slowest, total = parts[0], min(parts, key=lambda p: p.gpu.nic_bytes_per_s), sum(counts.values())
    source = f"the slowest NIC, of {slowest.gpu.name}; latency: {SCALE_OUT_LATENCY_SOURCE}"
    outer = Tier("scale-out", total, slowest.gpu.nic_bytes_per_s, SCALE_OUT_LATENCY_S, source)
    return evolve(
        first,
        n_gpus=total,
        tiers=(*(t for t in first.tiers if t.name != "scale-out"), outer),
        host_memory_bytes_per_node=min(p.host_memory_bytes_per_node for p in parts),
        overrides=tuple(f"{p.gpu.name}: {o}" for p in parts for o in p.overrides),
        kinds=parts,
    )


def _count(gpu: Gpu, group: _Group) -> int:
    if (group.nodes is None) == (group.count is None):
        raise SpecError(f"[[gpus]] group {group.type}: give either 'nodes' or 'count' (of GPUs)")
    per_node = gpu.gpus_per_node if group.gpus_per_node is None else group.gpus_per_node
    n = group.count if group.nodes is None else group.nodes * per_node
    assert n is not None, "one of the two is given"
    if n < 1:
        raise SpecError(f"[[gpus]] group {group.type}: 'nodes' and 'count' must be positive")
    return n


def _tier(t: _NetworkTier, cluster: Cluster, *, last: bool) -> Tier:
    if t.gpus is None and not last:
        raise SpecError(f"[[network]] level '{t.name}': 'gpus' is missing; only the last level may leave it out")
    if not t.oversubscription >= 1:
        raise SpecError(f"[[network]] level '{t.name}': oversubscription must be 1 or more, not {t.oversubscription:g}")
    rate = cluster.gpu.nic_bytes_per_s if t.gb_per_s is None else t.gb_per_s * 1e9
    source = _source(cluster.gpu, "nic_bytes_per_s") if t.gb_per_s is None else "cluster file"
    if t.oversubscription > 1:
        source += f", oversubscribed {t.oversubscription:g} to 1"
    ranks = cluster.n_gpus if t.gpus is None else t.gpus
    return Tier(t.name, min(ranks, cluster.n_gpus), rate / t.oversubscription, t.latency_us * 1e-6, source)
