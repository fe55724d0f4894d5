"""Fits the training model's constants of origin "fitted" on measured runs, and writes them into the data files.

Usage: python benchmarks/training_fit.py RUNS.jsonl [--write] [--iterations 6]

Least squares on the logarithm of predicted over measured tokens/s, soft on outliers, pulled towards where physics
or another measurement puts a constant and never beyond its bounds. Related GPUs share a constant. ``--write`` puts
the values, with the number of rows that depend on each, into autoparallel_core/cost/constants.toml and the GPU files.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

import autoparallel_core as ap
from autoparallel_core.errors import AutoparallelError
from autoparallel_core.records import RunRecord, read_records
from autoparallel_core.runs.translate import Translator
from autoparallel_core.runs.validate import settled_strategy
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.cluster import Gpu
from autoparallel_core.spec.problem import Constant, Problem
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]
ROOT = Path(__file__).resolve().parent.parent
CONSTANTS = ROOT / "autoparallel_core" / "cost" / "constants.toml"
GPU_FILES = ROOT / "plugins" / "hardware"
SOFT = 0.06
"""Errors well above this count by their size, not its square."""
H100_PEAK = 989.4e12


@frozen
class Fitted:
    """One constant: where it lives, where it should be, how firmly, and its bounds."""

    name: str
    expected: float
    spread: float
    """One standard deviation around ``expected``, as a share of it."""
    low: float
    high: float
    gpus: tuple[str, ...] = ()
    """Beginnings of GPU names that share it; empty: a constant of the core."""
    also: tuple[str, ...] = ()
    """Constants of the core that take the same value."""

    def value_for(self, gpu: Gpu, value: float) -> float:
        """FlashAttention-2 is not bound by the tensor cores: a power-limited part reaches the same FLOP/s."""
        limited = self.name == "attention_flash2" and gpu.name.startswith("H100-96GB")
        return value * H100_PEAK / gpu.peak("bf16") if limited else value


AMPERE, HOPPER, MI = ("A100", "A800", "A10G"), ("H100", "H200", "H20-", "H800", "GH200"), ("MI3",)
BLACKWELL, ULTRA = ("B200", "GB200"), ("B300", "GB300")
FITTED = (
    Fitted("gemm_bf16", 0.82, 0.05, 0.60, 0.87, AMPERE),
    Fitted("gemm_bf16", 0.70, 0.2, 0.50, 0.80, HOPPER),
    Fitted("gemm_bf16", 0.55, 0.2, 0.30, 0.78, BLACKWELL),
    Fitted("gemm_bf16", 0.65, 0.2, 0.30, 0.78, ULTRA),
    Fitted("gemm_bf16", 0.46, 0.2, 0.30, 0.68, MI),
    Fitted("gemm_fp8", 0.65, 0.2, 0.30, 0.71, HOPPER),
    Fitted("gemm_fp8", 0.55, 0.2, 0.30, 0.72, BLACKWELL),
    Fitted("gemm_fp8", 0.65, 0.2, 0.30, 0.74, ULTRA),
    Fitted("gemm_fp4", 0.45, 0.25, 0.20, 0.53, BLACKWELL),
    Fitted("gemm_fp4", 0.40, 0.25, 0.20, 0.427, ULTRA),
    Fitted("attention_fused", 0.57, 0.2, 0.20, 0.75, HOPPER),
    Fitted("attention_fused", 0.52, 0.2, 0.20, 0.65, (*BLACKWELL, *ULTRA)),
    Fitted("attention_flash2", 0.50, 0.2, 0.20, 0.67, AMPERE),
    Fitted("attention_flash2", 0.28, 0.2, 0.15, 0.40, HOPPER),
    Fitted("gemm_half_k", 150.0, 1.0, 20.0, 500.0),
    Fitted("gemm_misaligned", 0.59, 0.35, 0.3, 1.0),
    Fitted("expert_half_rows", 61.0, 0.35, 0.0, 400.0),
    Fitted("elementwise_fused", 0.85, 0.15, 0.5, 1.0, also=("elementwise_compiled",)),
    Fitted("elementwise_partly_fused", 1.4, 0.2, 0.8, 2.0),
    Fitted("elementwise_eager", 1.6, 0.2, 0.9, 2.5),
    Fitted("cast_bytes_per_element", 4.5, 0.3, 2.0, 10.0),
    Fitted("op_recompute_gemm_share", 0.37, 0.3, 0.05, 1.0),
    Fitted("host_launch_s", 27e-6, 0.5, 0.0, 100e-6),
    Fitted("host_moe_gap_s", 0.6e-3, 0.5, 0.0, 3e-3),
    Fitted("host_blocking_layer_s", 2e-3, 0.5, 0.0, 6e-3),
    Fitted("scale_out_efficiency", 0.82, 0.1, 0.4, 0.92),
    Fitted("scale_out_latency_s", 30e-6, 0.5, 5e-6, 100e-6),
    Fitted("ep_overlap_exposed", 0.4, 0.35, 0.1, 1.0),
    Fitted("overlap_loss", 0.15, 0.35, 0.0, 0.5),
    Fitted("optimizer_fixed_s", 10e-3, 0.35, 0.0, 40e-3),
)


@frozen(eq=False)
class Runs:
    """Measured runs as questions; those that differ in the strategy only are priced together."""

    records: tuple[RunRecord, ...]
    measured: Array
    """Tokens/s/GPU, [R]."""
    groups: tuple[tuple[Problem, NDArray[np.int64], StrategyBatch], ...]
    """Problem, its records, their strategies."""
    weights: Array = field(factory=lambda: np.ones(0))

    @classmethod
    def load(cls, path: Path) -> Runs:
        """High-confidence runs with a measured speed, without repeats and superseded ones."""
        host = ap.host()
        translator = Translator(host)
        records, problems, strategies = [], [], []
        for r in read_records(path):
            if not isinstance(r, RunRecord) or r.mode != "training" or not _counts(r):
                continue
            try:
                t = translator.translate(r)
                strategy = settled_strategy(t, host)
            except AutoparallelError:
                continue
            records.append(r)
            problems.append(t.problem)
            strategies.append(strategy)
        members: dict[int, list[int]] = {}
        for i, p in enumerate(problems):
            members.setdefault(id(p), []).append(i)
        groups = tuple((problems[ix[0]], np.array(ix), StrategyBatch.of([strategies[i] for i in ix])) for ix in members.values())
        measured = np.array([float(r.measured["tokens_per_s_per_gpu"]) for r in records])
        # The one published table with every second explained weighs more than logs of production runs.
        weights = np.array([5.0 if "2205.05198" in r.source else 1.0 for r in records])
        return cls(tuple(records), measured, groups, weights)

    def group_keys(self) -> list[str]:
        """Model × GPU of every record."""
        return [f"{r.name} × {r.cluster['gpu']}" for r in self.records]

    def predict(self, values: Sequence[float], groups: Sequence[int] | None = None, out: Array | None = None) -> Array:
        """Tokens/s/GPU of every record, [R]; only ``groups`` are priced anew where ``out`` has the others."""
        found = np.full(len(self.records), np.nan) if out is None else out.copy()
        for k in range(len(self.groups)) if groups is None else groups:
            problem, ix, batch = self.groups[k]
            found[ix] = evaluate(with_values(problem, values), batch).tokens_per_s_per_gpu
        return found


def _counts(r: RunRecord) -> bool:
    return (
        r.confidence == "high"
        and not r.measured.get("oom")
        and bool(r.measured.get("tokens_per_s_per_gpu"))
        and not any(word in flag for flag in r.flags for word in ("duplicate", "superseded"))
    )


def with_values(problem: Problem, values: Sequence[float]) -> Problem:
    """The problem with other fitted constants."""
    constants, gpu = dict(problem.constants), problem.cluster.gpu
    rates = dict(gpu.training)
    for f, value in zip(FITTED, values, strict=True):
        if f.gpus:
            if gpu.name.startswith(f.gpus) and f.name in rates:
                rates[f.name] = f.value_for(gpu, float(value))
            continue
        for name in (f.name, *f.also):
            constants[name] = Constant(float(value), "", "")
    return evolve(problem, constants=constants, cluster=evolve(problem.cluster, gpu=evolve(gpu, training=rates)))


@frozen(eq=False)
class Fit:
    """Values of FITTED and the predictions with them."""

    values: Array
    predicted: Array
    rows: Mapping[int, tuple[int, ...]]
    """Records that each constant moves."""

    def count(self, j: int) -> int:
        return len(self.rows.get(j, ()))


def fit(runs: Runs, mask: NDArray[np.bool_] | None = None, *, start: Array | None = None, iterations: int = 6) -> Fit:
    """Gauss-Newton within bounds on the records of ``mask``; the other records are predicted with the result."""
    used = np.flatnonzero(np.ones(len(runs.records), bool) if mask is None else mask)
    groups = [k for k, (_, ix, _) in enumerate(runs.groups) if np.isin(ix, used).any()]
    low, high = np.array([f.low for f in FITTED]), np.array([f.high for f in FITTED])
    expected = np.array([f.expected for f in FITTED])
    sigma = expected * np.array([f.spread for f in FITTED])
    x = np.clip(expected if start is None else start, low, high)
    touched: dict[int, list[int]] = {}
    rows: dict[int, tuple[int, ...]] = {}

    def loss(found: Array, at: Array) -> float:
        r = np.log(found[used] / runs.measured[used])
        soft = 2 * (np.sqrt(1 + (r / SOFT) ** 2) - 1)
        return float((runs.weights[used] * soft).sum() + (((at - expected) / sigma) ** 2).sum())

    found = runs.predict(x, groups)
    current, damping = loss(found, x), 1e-2
    for _ in range(iterations):
        slope = np.zeros((len(used), len(x)))
        for j in range(len(x)):
            step = 0.03 * max(abs(x[j]), 0.3 * expected[j]) * (-1 if x[j] * 1.03 > high[j] else 1)
            moved = x.copy()
            moved[j] += step
            other = runs.predict(moved, touched.get(j, groups), found)
            if j not in touched:
                changed = {int(i) for i in np.flatnonzero(np.abs(other / found - 1) > 1e-9)}
                touched[j] = [k for k in groups if changed & set(runs.groups[k][1].tolist())]
                rows[j] = tuple(sorted(changed & set(used.tolist())))
            slope[:, j] = (np.log(other[used]) - np.log(found[used])) / step
        r = np.log(found[used] / runs.measured[used])
        w = runs.weights[used] / np.sqrt(1 + (r / SOFT) ** 2) / SOFT**2
        pull = slope.T @ (w * r) + (x - expected) / sigma**2
        curve = slope.T @ (w[:, None] * slope) + np.diag(1 / sigma**2)
        for _ in range(5):
            trial = np.clip(x + _bounded_step(curve, pull, damping, x, low, high), low, high)
            tried = runs.predict(trial, groups, found)
            if (new := loss(tried, trial)) < current:
                break
            damping *= 6
        else:
            break
        gain, current, x, found, damping = current - new, new, trial, tried, max(damping / 4, 1e-4)
        if gain < 0.002 * current:
            break
    return Fit(x, runs.predict(x), rows)


def _bounded_step(curve: Array, pull: Array, damping: float, x: Array, low: Array, high: Array) -> Array:
    """Newton step with the variables at their bounds held."""
    matrix = curve + damping * np.diag(np.diag(curve))
    free = np.ones(len(x), bool)
    step = np.zeros(len(x))
    for _ in range(4):
        step = np.zeros(len(x))
        step[free] = -np.linalg.solve(matrix[np.ix_(free, free)], pull[free])
        stuck = free & (((x <= low) & (step < 0)) | ((x >= high) & (step > 0)))
        if not stuck.any():
            break
        free &= ~stuck
    return step


def errors(predicted: Array, measured: Array) -> str:
    """Median, mean and 90th percentile of the absolute error, in percent."""
    e = np.sort(np.abs(predicted / measured - 1)) * 100
    return f"n {len(e):3d}  median {np.median(e):5.1f}  mean {e.mean():5.1f}  p90 {e[min(len(e) - 1, int(0.9 * len(e)))]:5.1f}"


def write(found: Fit, runs: Runs) -> None:
    """Put the values into the data files, rounded to three digits, with the rows behind each."""
    text = CONSTANTS.read_text()
    gpus = {g.name: g for g in ap.host().gpus().values()}
    for j, f in enumerate(FITTED):
        if f.gpus:
            continue
        for name in (f.name, *f.also):
            text, n = re.subn(rf"(\[{name}\]\nvalue = )\S+", rf"\g<1>{float(f'{found.values[j]:.3g}')!r}", text)
            text, k = re.subn(
                rf'(\[{name}\]\n(?:.+\n)*?source = "[^"]*?)(?:; \d+ runs)?"', rf'\g<1>; {found.count(j)} runs"', text
            )
            assert n == k == 1, name
    CONSTANTS.write_text(text)
    for path in sorted(GPU_FILES.glob("*/data/*.toml")):
        name = tomllib.loads(path.read_text())["name"]
        changed = path.read_text()
        for j, f in enumerate(FITTED):
            if not name.startswith(f.gpus or ("?",)):
                continue
            value = float(f"{f.value_for(gpus[name], float(found.values[j])):.3g}")
            start = changed.index("[training]")
            head, body = changed[:start], changed[start:]
            body = re.sub(rf"^({f.name} = )\S+", rf"\g<1>{value!r}", body, count=1, flags=re.MULTILINE)
            ran = sorted({str(runs.records[i].cluster["gpu"]) for i in found.rows.get(j, ())})
            words = f"fitted on {found.count(j)} published training runs of {', '.join(ran)}"
            body = re.sub(rf'^("training\.{f.name}" = )"[^"]*"', rf'\g<1>"{words}"', body, count=1, flags=re.MULTILINE)
            changed = head + body
        if changed != path.read_text():
            path.write_text(changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="run records, one JSON object a line")
    parser.add_argument("--write", action="store_true", help="put the values into the data files")
    parser.add_argument("--iterations", type=int, default=6)
    args = parser.parse_args()
    runs = Runs.load(args.runs)
    found = fit(runs, iterations=args.iterations)
    for j, f in enumerate(FITTED):
        bound = " (bound)" if not f.low * 1.0001 < found.values[j] < f.high * 0.9999 else ""
        where = f" of {', '.join(f.gpus)}" if f.gpus else ""
        print(f"{f.name + where:<48}{f.expected:>10.4g} -> {found.values[j]:<10.4g}{found.count(j):>5} rows{bound}")
    print(errors(found.predicted, runs.measured))
    if args.write:
        write(found, runs)


if __name__ == "__main__":
    main()
