"""GPU presets from data files: one TOML per GPU, each figure with its source, checked strictly.

A folder holds ``<gpu>.toml`` (what the vendor states and what runs taught, written by hand) and may hold
``measured/<gpu>.toml`` (efficiencies fitted to operator tables, written by a script). A GPU without tables of its own
names the one it resembles (``kernels_like``, ``collectives_like``): it inherits those efficiencies as assumptions, the
collectives scaled by the ratio of the two links. docs/reference/gpu-data.md documents every key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any, Literal

import cattrs
from attrs import evolve, fields, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import did_you_mean
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency, Gpu
from autoparallel_core.strict import strict_converter

KERNEL_TABLES = ("gemm", "expert_gemm", "attention")
_MEASURED_TABLES = (*KERNEL_TABLES, "collectives", "serving")


@frozen
class _Links:
    """Keys of a data file that steer the reading and are not figures of the GPU."""

    kernels_like: str | None = None
    collectives_like: str | None = None
    operator_data: str | None = None
    """The GPU's name in the operator tables that benchmarks/derive_efficiency.py reads."""


def read_gpus(folder: Traversable) -> tuple[Gpu, ...]:
    """All presets of a folder, by file name.

    Raises:
        SpecError: a file is not valid TOML, misses or misspells a key, has a value of the wrong type, a figure
            without a source, or resembles a GPU that the folder does not have.
    """
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    raw = {f.name: _read(f, folder) for f in files}
    own = {name: _structure(table, name) for name, table in raw.items()}
    by_name = {gpu.name: (gpu, links) for gpu, links in own.values()}
    return tuple(_complete(gpu, links, by_name, ()) for gpu, links in by_name.values())


def scale_collectives(gpu: Gpu, *, scale_up: float = 1.0, nic: float = 1.0, why: str) -> dict[str, tuple[CollectiveCurve, ...]]:
    """The GPU's curves on links so many times as fast: bandwidth scales, latency stays; ``why`` heads each source.

    Groups within the fabric scale with its link, those across the network with the NIC.
    """
    by_reach = {"fabric": scale_up, "node": 1.0, "network": nic}

    def one(kind: str, c: CollectiveCurve) -> CollectiveCurve:
        ratio = by_reach[_reach(gpu, c.ranks)]
        if ratio == 1.0:
            return c
        share = (2.0 if kind.startswith("all_reduce") else 1.0) * (c.ranks - 1) / c.ranks
        saved = share / c.bus_bytes_per_s * (1.0 - 1.0 / ratio)
        knots = tuple((n, max(t - n * saved, min(t, c.latency_s))) for n, t in c.knots)
        source = f"{why}, bandwidth times {ratio:.3g} ({c.source})"
        return evolve(c, bus_bytes_per_s=c.bus_bytes_per_s * ratio, knots=knots, source=source)

    return {kind: tuple(one(kind, c) for c in curves) for kind, curves in gpu.collectives.items()}


def _reach(gpu: Gpu, ranks: int) -> Literal["fabric", "node", "network"]:
    """What joins a group of so many GPUs: the scale-up link, the node's host bridges beyond it, or the network."""
    fabric = gpu.scale_up_domain if gpu.scale_up_domain > 1 else gpu.gpus_per_node
    if ranks <= fabric:
        return "fabric"
    return "node" if ranks <= gpu.gpus_per_node else "network"


def _read(file: Traversable, folder: Traversable) -> dict[str, Any]:
    table = _toml(file)
    measured = folder / "measured" / file.name
    if measured.is_file():
        extra = _toml(measured)
        if unknown := sorted(set(extra) - {*_MEASURED_TABLES, "sources"}):
            raise SpecError(f"measured/{file.name}: key '{unknown[0]}' is not one of {', '.join(_MEASURED_TABLES)}, sources")
        for name in (*_MEASURED_TABLES, "sources"):
            if name in extra:
                table[name] = {**extra[name], **table.get(name, {})}
    return table


def _toml(file: Traversable) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as e:
        raise SpecError(f"{file.name}: not valid TOML: {e}") from e


def _structure(table: Mapping[str, Any], file: str) -> tuple[Gpu, _Links]:
    links = {k: table[k] for k in (f.name for f in fields(_Links)) if k in table}
    figures = {k: v for k, v in table.items() if k not in links}
    converter = strict_converter()
    try:
        gpu, steer = converter.structure(figures, Gpu), converter.structure(links, _Links)
    except cattrs.BaseValidationError as e:
        raise SpecError(f"{file}: {'; '.join(cattrs.transform_error(e))}") from e
    if missing := sorted(unsourced_figures(gpu)):
        raise SpecError(f"{file}: no source for {', '.join(missing)}; add it under [sources]")
    if "fp16" in gpu.peak_flops:
        gpu = evolve(gpu, gemm=_with_fp16(gpu.gemm), expert_gemm=_with_fp16(gpu.expert_gemm))
    return gpu, steer


def _with_fp16(table: Mapping[str, Efficiency]) -> Mapping[str, Efficiency]:
    """The two 16-bit formats run on the same units at the same rate."""
    bf16 = table.get("bf16")
    if bf16 is None or "fp16" in table:
        return table
    return {**table, "fp16": evolve(bf16, source=f"as bf16, the same units ({bf16.source})")}


def unsourced_figures(gpu: Gpu) -> set[str]:
    """Names of figures that ``gpu.sources`` does not cover (``training`` covers all keys of that table)."""
    named = {
        f.name
        for f in fields(Gpu)
        if f.name.endswith(("_bytes", "_per_s", "_per_node", "_domain")) and getattr(gpu, f.name) is not None
    }
    for table in ("peak_flops", "training", "serving"):
        if table not in gpu.sources:
            named |= {f"{table}.{key}" for key in getattr(gpu, table)}
    return {n for n in named if not gpu.sources.get(n)}


def _complete(gpu: Gpu, links: _Links, known: Mapping[str, tuple[Gpu, _Links]], chain: tuple[str, ...]) -> Gpu:
    """Fill in what the GPU has no figure of its own for, from the one it resembles, marked as assumed."""
    kernels, collectives = links.kernels_like, links.collectives_like or links.kernels_like
    if kernels is None and collectives is None:
        return gpu
    chain = (*chain, gpu.name)

    def like(name: str) -> Gpu:
        if name not in known:
            raise SpecError(f"{gpu.name}: resembles the unknown GPU '{name}'; {did_you_mean(name, known)}")
        if name in chain:
            raise SpecError(f"{gpu.name}: resembles itself by way of {' → '.join((*chain, name))}")
        return _complete(*known[name], known, chain)

    changes: dict[str, Any] = {}
    sources = dict(gpu.sources)
    if kernels is not None:
        other = like(kernels)
        for table in KERNEL_TABLES:
            inherited = {
                key: evolve(e, origin="assumed", source=_assumed(other, e.source))
                for key, e in getattr(other, table).items()
                if table == "attention" or _supports(gpu, other, key)
            }
            changes[table] = {**inherited, **getattr(gpu, table)}
        serving = {k: v for k, v in other.serving.items() if k not in gpu.serving}
        changes["serving"] = {**serving, **gpu.serving}
        sources |= {f"serving.{k}": _assumed(other, _source(other, "serving", k)) for k in serving}
    if collectives is not None:
        other = like(collectives)
        changes["collectives"] = _with_curves_of(gpu, other)
    return evolve(gpu, sources=sources, **changes)


def _with_curves_of(gpu: Gpu, other: Gpu) -> dict[str, tuple[CollectiveCurve, ...]]:
    """The GPU's own curves and, for group sizes it has none of, the other's on this GPU's links.

    A curve of a group that the other's fabric joins says nothing about one that crosses host bridges or the network
    here. No group is faster than its GPUs' link.
    """
    scaled = scale_collectives(
        other,
        scale_up=gpu.scale_up_bytes_per_s / other.scale_up_bytes_per_s,
        nic=gpu.nic_bytes_per_s / other.nic_bytes_per_s,
        why=f"as {other.name}",
    )
    joined = dict(gpu.collectives)
    for kind, curves in scaled.items():
        own = gpu.collectives.get(kind, ())
        measured = {c.ranks for c in own}
        inherited = [
            evolve(
                c,
                origin="assumed",
                source=f"assumed {c.source}" if c.source.startswith("as ") else _assumed(other, c.source),
                bus_bytes_per_s=min(c.bus_bytes_per_s, (2 if kind.startswith("all_reduce") else 1) * gpu.scale_up_bytes_per_s),
            )
            for c in curves
            if c.ranks not in measured and _reach(gpu, c.ranks) == _reach(other, c.ranks) != "node"
        ]
        if own or inherited:
            joined[kind] = tuple(sorted((*own, *inherited), key=lambda c: c.ranks))
    return joined


def _assumed(other: Gpu, source: str) -> str:
    return f"assumed as {other.name} ({source})"


def _supports(gpu: Gpu, other: Gpu, key: str) -> bool:
    """Whether the GPU has the tensor-core dtype behind an efficiency key (``fp8_block`` → fp8, ``int4_wo`` → 16 bit)."""
    dtype = key.split("_", maxsplit=1)[0]
    return dtype in gpu.peak_flops or dtype not in other.peak_flops


def _source(gpu: Gpu, table: str, key: str) -> str:
    return gpu.sources.get(f"{table}.{key}") or gpu.sources[table]
