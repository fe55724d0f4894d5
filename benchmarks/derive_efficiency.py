"""Efficiencies, collectives and fixed times per GPU, fitted to measured operator tables.

    python benchmarks/derive_efficiency.py [--ops ../shared/ops] [--gpu NAME] [--write]

Prints the fitted table; ``--write`` puts it into plugins/hardware/*/data/measured/*.toml, which the presets read.
Needs scipy. The tables (aiconfigurator, Apache-2.0; InferSim, Apache-2.0) are not part of the project; without them
the script says so and stops.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collective_fits import collectives
from operator_fits import Preset, attention, expert_gemm, fixed_seconds, gemm
from operator_tables import Tables
from roofline_fit import Curve, Roofline

REPOSITORY = Path(__file__).resolve().parent.parent
FALLBACKS = (  # missing, present: the same units and the same peak
    ("decode_fp8", "decode"),
    ("mla_prefill_fp8", "mla_prefill"),
    ("mla_decode", "mla_decode_fp8"),
    ("mla_decode_fp8", "mla_decode"),
)


@dataclass
class Derived:
    kernels: dict[str, dict[str, tuple[Roofline, str]]] = field(default_factory=dict)
    curves: dict[str, list[tuple[Curve, str]]] = field(default_factory=dict)
    seconds: dict[str, tuple[float, str]] = field(default_factory=dict)


# -- output ---------------------------------------------------------------------------------------------------------


def derive(p: Preset, tables: Tables, presets: Mapping[str, Preset]) -> Derived:
    out = Derived()
    for name, fits in (
        ("gemm", gemm(p, tables)),
        ("expert_gemm", expert_gemm(p, tables, presets)),
        ("attention", attention(p, tables)),
    ):
        out.kernels[name] = {key: (fit, source) for key, fit, source in fits}
        for missing, present in FALLBACKS:
            if present in out.kernels[name] and missing not in out.kernels[name]:
                fit, source = out.kernels[name][present]
                out.kernels[name][missing] = (fit, f"as {present}: {source}")
        if "fp8" in p.peak and name == "expert_gemm" and "fp8" not in out.kernels[name] and "fp8_block" in out.kernels[name]:
            fit, source = out.kernels[name]["fp8_block"]
            out.kernels[name]["fp8"] = (fit, f"block-scaled rows in place of too few others: {source}")
    for kind, curve, source in collectives(p, tables):
        out.curves.setdefault(kind, []).append((curve, source))
    for kind, curves in out.curves.items():
        best = {c.ranks: (c, s) for c, s in curves}  # TensorRT-LLM's rows come last and reach further than DeepEP's
        out.curves[kind] = [best[r] for r in sorted(best)]
    out.seconds = {key: (value, source) for key, value, source in fixed_seconds(p, tables)}
    return out


def show(p: Preset, d: Derived) -> None:
    print(f"\n{p.operator_name}  ({p.path.stem})")
    for table, fits in d.kernels.items():
        for key, (f, source) in fits.items():
            print(
                f"  {table + '.' + key:24s} compute {f.compute:.3f}  memory {f.memory:.3f}  fixed {f.fixed_s * 1e6:5.1f} µs"
                f"  {f.note}  [{source}]"
            )
    for kind, curves in d.curves.items():
        for c, _ in curves:
            print(
                f"  {kind:24s} {c.ranks:3d} ranks  {c.bus_bytes_per_s / 1e9:7.1f} GB/s bus  {c.latency_s * 1e6:6.1f} µs"
                f"  {c.rows} rows, error {c.median_error:.0%}{', knots' if c.knots else ''}"
            )
    for key, (value, source) in d.seconds.items():
        print(f"  {key:24s} {value * 1e6:.1f} µs  [{source}]")


def _toml_key(key: str) -> str:
    return f'"{key}"' if "@" in key else key


def to_toml(d: Derived) -> str:
    lines = ["# Written by benchmarks/derive_efficiency.py --write; do not edit."]
    for table, fits in d.kernels.items():
        for key, (f, source) in fits.items():
            lines += ["", f"[{table}.{_toml_key(key)}]", f"compute = {f.compute:.3f}", f"memory = {f.memory:.3f}"]
            lines += [f"fixed_s = {f.fixed_s:.2e}", 'origin = "measured"', f'source = "{source}: {f.note}"']
    for kind, curves in d.curves.items():
        for c, source in curves:
            lines += [
                "",
                f"[[collectives.{_toml_key(kind)}]]",
                f"ranks = {c.ranks}",
                f"bus_bytes_per_s = {c.bus_bytes_per_s:.4g}",
            ]
            lines += [f"latency_s = {c.latency_s:.3g}", 'origin = "measured"']
            lines += [f'source = "{source}: {c.rows} rows, error {c.median_error:.0%} median"']
            if c.knots:
                lines += ["knots = [" + ", ".join(f"[{n}, {t:.3g}]" for n, t in c.knots) + "]"]
    if d.seconds:
        lines += ["", "[serving]", *(f"{k} = {v:.3g}" for k, (v, _) in d.seconds.items())]
        lines += ["", "[sources]", *(f'"serving.{k}" = "{s}"' for k, (_, s) in d.seconds.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ops", type=Path, default=REPOSITORY.parent / "shared" / "ops", help="folder of the operator tables")
    parser.add_argument("--gpu", help="only the GPU of this name in the tables")
    parser.add_argument("--write", action="store_true", help="write data/measured/*.toml")
    args: Any = parser.parse_args()
    if not (args.ops / "gemm.csv.gz").is_file():
        print(f"no operator tables in {args.ops}; give their folder with --ops", file=sys.stderr)
        return 2
    tables = Tables(args.ops)
    found = (Preset.read(f) for f in sorted(REPOSITORY.glob("plugins/hardware/*/data/*.toml")))
    presets = {p.operator_name: p for p in found if p is not None}
    for p in presets.values():
        if args.gpu in (None, p.operator_name):
            d = derive(p, tables, presets)
            show(p, d)
            if args.write:
                target = p.path.parent / "measured" / p.path.name
                target.parent.mkdir(exist_ok=True)
                target.write_text(to_toml(d), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
