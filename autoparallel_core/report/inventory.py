"""What is installed: plugins, engines and GPU presets, as tables and as JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import heading, labelled, make_console, put
from autoparallel_core.report.document import dumps, envelope
from autoparallel_core.report.layout import Column, print_records
from autoparallel_core.report.show import engine_document
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency, Gpu
from autoparallel_core.spec.problem import EngineSpec

if TYPE_CHECKING:
    from autoparallel_core.host import PluginInfo


def print_json(document: Mapping[str, Any]) -> None:
    """The one JSON object on standard output."""
    print(dumps(document))  # noqa: T201  the document is the command's output


def plugins_document(plugins: Sequence[PluginInfo]) -> dict[str, Any]:
    return envelope("plugins", {"plugins": [asdict(p) for p in plugins]})


def print_plugins(plugins: Sequence[PluginInfo]) -> None:
    console = make_console()
    print_records(
        console,
        [
            Column("plugin", [p.name for p in plugins], right=False),
            Column("kind", [p.kind for p in plugins], right=False),
            Column("version", [p.version for p in plugins], right=False),
            Column("distribution", [p.distribution for p in plugins], right=False),
            Column("status", [p.status for p in plugins], right=False),
            Column("hooks", [", ".join(p.hooks) for p in plugins], right=False, main=False, words="{}"),
            Column("", [p.reason for p in plugins], right=False, main=False, words="{}"),
        ],
    )


def engines_document(engines: Mapping[str, EngineSpec], providers: Mapping[str, str]) -> dict[str, Any]:
    return envelope("engines", {"engines": [engine_document(e, providers[e.name]) for e in engines.values()]})


def print_engines(engines: Mapping[str, EngineSpec], providers: Mapping[str, str]) -> None:
    console = make_console()
    every = list(engines.values())
    print_records(
        console,
        [
            Column("engine", [e.name for e in every], right=False),
            Column("modes", [", ".join(e.modes) for e in every], right=False),
            Column("version", [e.default_version for e in every], right=False),
            Column("default for", [", ".join(e.default_for) for e in every], right=False),
            Column("plugin", [providers[e.name] for e in every], right=False),
            Column("what it does", [e.summary for e in every], right=False, main=False, words="{}"),
        ],
    )


def gpu_document(gpu: Gpu, plugin: str) -> dict[str, Any]:
    """Every figure of one preset, SI units, with its sources."""
    apart = {"gemm", "expert_gemm", "attention", "collectives", "tables", "replaced"}
    plain = {k: v for k, v in asdict(gpu, recurse=False).items() if k not in apart}
    for table in ("gemm", "expert_gemm", "attention"):
        plain[table] = {k: asdict(v) for k, v in getattr(gpu, table).items()}
    plain["collectives"] = {kind: [asdict(c) for c in curves] for kind, curves in gpu.collectives.items()}
    return envelope("gpus show", {"gpu": {**plain, "plugin": plugin}})


def gpus_document(gpus: Mapping[str, Gpu]) -> dict[str, Any]:
    return envelope(
        "gpus",
        {
            "gpus": [
                {
                    "name": g.name,
                    "vendor": g.vendor,
                    "aliases": list(g.aliases),
                    "memory_bytes": g.memory_bytes,
                    "hbm_bytes_per_s": g.hbm_bytes_per_s,
                    "peak_flops_per_s": dict(g.peak_flops),
                    "scale_up_bytes_per_s": g.scale_up_bytes_per_s,
                    "scale_up_domain": g.scale_up_domain,
                    "nic_bytes_per_s": g.nic_bytes_per_s,
                    "gpus_per_node": g.gpus_per_node,
                    "default": g.default,
                }
                for g in gpus.values()
            ]
        },
    )


def _tera(gpu: Gpu, dtype: str) -> str:
    return fmt.significant(gpu.peak_flops[dtype] / 1e12) if dtype in gpu.peak_flops else "–"


def print_gpus(gpus: Mapping[str, Gpu]) -> None:
    console = make_console()
    every = list(gpus.values())
    print_records(
        console,
        [
            Column("GPU", [g.name for g in every], right=False),
            Column("memory\nGB", [fmt.gigabytes(g.memory_bytes) for g in every]),
            Column("HBM\nGB/s", [f"{g.hbm_bytes_per_s / 1e9:,.0f}" for g in every]),
            Column("bf16\nTFLOP/s", [_tera(g, "bf16") for g in every]),
            Column("fp8\nTFLOP/s", [_tera(g, "fp8") for g in every]),
            Column("scale-up\nGB/s", [f"{g.scale_up_bytes_per_s / 1e9:,.0f}" for g in every]),
            Column("domain", [str(g.scale_up_domain) for g in every]),
            Column("NIC\nGB/s", [f"{g.nic_bytes_per_s / 1e9:,.1f}" for g in every]),
            Column("also called", [", ".join(g.aliases) for g in every], right=False, main=False, words="also called {}"),
        ],
    )
    put(console, "Dense peaks; links per GPU and direction; memory as the driver shows it, in decimal GB.", style="dim")


def _efficiency(title: str, e: Efficiency) -> tuple[str, str]:
    source = e.source if e.source.startswith(e.origin) or e.origin == "preset" else f"{e.origin}: {e.source}"
    return title, f"{fmt.percent(e.compute)} of peak, {fmt.percent(e.memory)} of HBM bandwidth ({source})"


def _curve(c: CollectiveCurve) -> str:
    return f"{c.ranks} ranks {fmt.bandwidth(c.bus_bytes_per_s)}, {fmt.seconds(c.latency_s)} ({c.source})"


def print_gpu(gpu: Gpu, plugin: str) -> None:
    console = make_console()
    put(console, f"{gpu.name} · {gpu.vendor} {gpu.architecture} · from plugin {plugin}", style="bold")

    def of(name: str, text: str) -> tuple[str, str]:
        return name, text + (f"  ({gpu.sources[name]})" if name in gpu.sources else "")

    peaks = ", ".join(f"{dtype} {fmt.flops(peak)}" for dtype, peak in gpu.peak_flops.items())
    marketing = f", sold as {fmt.memory(gpu.marketing_memory_bytes)}"
    rows = [
        of("memory_bytes", fmt.memory(gpu.memory_bytes) + marketing),
        of("peak_flops", peaks + ", all dense"),
        of("hbm_bytes_per_s", fmt.bandwidth(gpu.hbm_bytes_per_s)),
        of("scale_up_bytes_per_s", f"{fmt.bandwidth(gpu.scale_up_bytes_per_s)} per GPU and direction"),
        of("scale_up_domain", f"{gpu.scale_up_domain} GPUs"),
        of("nic_bytes_per_s", f"{fmt.bandwidth(gpu.nic_bytes_per_s)} per GPU and direction"),
        of("gpus_per_node", str(gpu.gpus_per_node)),
        of("host_memory_bytes_per_node", fmt.memory(gpu.host_memory_bytes_per_node)),
    ]
    if gpu.aliases:
        rows.append(("aliases", ", ".join(gpu.aliases)))
    labelled(console, rows)
    for title, table in (("GEMM", gpu.gemm), ("Expert GEMM", gpu.expert_gemm), ("Attention", gpu.attention)):
        if table:
            heading(console, f"{title} efficiency on large shapes")
            labelled(console, [_efficiency(name, e) for name, e in table.items()])
    if gpu.collectives:
        heading(console, "Collectives: bus bandwidth and latency")
        labelled(console, [(kind, "; ".join(map(_curve, curves))) for kind, curves in gpu.collectives.items()])
    for kind, constants in (("training", gpu.training), ("serving", gpu.serving)):
        if constants:
            heading(console, f"{kind.capitalize()} constants")
            sources = {name: gpu.sources.get(f"{kind}.{name}") or gpu.sources.get(kind) for name in constants}
            rows = [(name, f"{value:g}" + (f"  ({sources[name]})" if sources[name] else "")) for name, value in constants.items()]
            labelled(console, rows)
