"""Fit of the serving constants on measured runs, and its cross-validation over model families.

Usage: python benchmarks/crossvalidate.py serving FILE.jsonl [--fit] [--folds] [--evaluations N]

Without flags: errors of the shipped constants. ``--fit``: constants fitted on all runs, and their errors. ``--folds``:
every model family is predicted with constants fitted on the other families. Time per token and offline throughput
decide the constants of a step; then time to first token decides those of the queue.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from attrs import evolve, fields
from scipy.optimize import least_squares

import autoparallel_core as ap
from autoparallel_core.cost.serving_hardware import ServingHardware
from autoparallel_core.cost.serving_load import Demand, reserved_tokens, steady_state
from autoparallel_core.cost.serving_memory import serving_memory
from autoparallel_core.errors import AutoparallelError
from autoparallel_core.records import RunRecord, read_records
from autoparallel_core.runs.translate import Translator
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

ENGINES = ("sglang", "trtllm", "vllm")
EVERY = ""
"""In place of an engine: a constant that all engines share."""


@dataclass(frozen=True)
class Free:
    """A fitted constant and the values that would still make physical sense."""

    engine: str
    name: str
    low: float
    high: float


STEP = (
    *(Free(e, "serving_layer_s", 0.0, 60e-6) for e in ENGINES),
    *(Free(e, "serving_moe_floor_s", 0.0, 80e-6) for e in ENGINES),
    Free(EVERY, "serving_sequence_s", 0.0, 20e-6),
    Free(EVERY, "serving_cast_s", 0.0, 12e-6),
    Free(EVERY, "serving_stage_wait", 0.0, 0.2),
    Free(EVERY, "serving_interference", 0.6, 1.5),
)
QUEUE = (
    *(Free(e, "serving_ttft_steps", 0.0, 60.0) for e in ENGINES),
    *(Free(e, "serving_first_wave", 0.0, 1.0) for e in ENGINES),
    *(Free(e, "serving_ttft_offset_s", 0.0, 0.3) for e in ENGINES),
    Free(EVERY, "serving_attention_dp_steps", 0.0, 120.0),
)
Values = Mapping[Free, float]


@dataclass
class Run:
    """One measured run and what was predicted for it last."""

    record: RunRecord
    problem: Problem
    batch: StrategyBatch
    capacity: np.ndarray
    tpot_s: float = 0.0
    ttft_s: float = 0.0
    output: float = 0.0

    @property
    def closed(self) -> bool:
        return self.problem.inference.load == "closed"

    def log_error(self, what: str) -> float:
        m = self.record.measured
        if what == "ttft":
            return float(np.log(self.ttft_s * 1e3 / m["ttft_ms"]))
        if what == "step" and self.closed:
            return float(np.log(self.tpot_s * 1e3 / m["tpot_ms"]))
        return float(np.log(self.output / m["output_tok_s"]))


def read(path: Path) -> list[Run]:
    """Closed-loop and offline runs of high confidence that state their engine and GPU."""
    host, runs = ap.host(), []
    translator = Translator(host)
    for record in read_records(path):
        load = str(record.workload.get("load", "")) if isinstance(record, RunRecord) else ""
        if not load.startswith(("closed loop", "offline")) or record.confidence != "high":  # type: ignore[union-attr]
            continue
        assert isinstance(record, RunRecord)
        try:
            t = translator.translate(record)
        except AutoparallelError:
            continue
        needed = ("tpot_ms", "ttft_ms") if load.startswith("closed") else ("output_tok_s",)
        if t.unpredicted or not all(record.measured.get(k) for k in needed):
            continue
        batch = StrategyBatch.of([t.strategy])
        memory = serving_memory(t.problem, batch, host)
        runs.append(Run(record, t.problem, batch, memory.capacity_tokens(reserved_tokens(t.problem))))
    return runs


class Predictor:
    """Predicts runs that share model, GPU and engine in one call."""

    def __init__(self, runs: Sequence[Run]) -> None:
        groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
        for r in runs:
            p, w = r.problem, r.problem.inference
            tier = p.cluster.tiers[0].ranks
            groups[
                id(p.arch), p.cluster.gpu.name, tier, p.engine.name, p.engine_version, w.kv_dtype, w.max_num_seqs,
                w.max_num_batched_tokens, w.device_memory_bytes,
            ].append(r)  # fmt: skip
        self.groups = []
        for members in groups.values():
            demands = [Demand.of(r.problem, 1) for r in members]
            demand = Demand(**{f.name: np.concatenate([getattr(d, f.name) for d in demands]) for f in fields(Demand)})
            batch = StrategyBatch.concat([r.batch for r in members])
            self.groups.append((members[0].problem, batch, np.concatenate([r.capacity for r in members]), demand, members))

    def __call__(self, values: Values) -> None:
        for problem, batch, capacity, demand, members in self.groups:
            own = {f.name: v for f, v in values.items() if f.engine in (EVERY, problem.engine.name)}
            constants = {n: evolve(c, value=own[n]) if n in own else c for n, c in problem.constants.items()}
            state = steady_state(ServingHardware(evolve(problem, constants=constants)), batch, capacity, demand)
            for i, r in enumerate(members):
                r.tpot_s, r.ttft_s, r.output = state.tpot_s[i], state.ttft_s[i], state.output_tokens_per_s[i]


def shipped(runs: Sequence[Run], free: Sequence[Free]) -> dict[Free, float]:
    """The constants as they are."""
    of = {r.problem.engine.name: r.problem for r in runs}
    return {f: of.get(f.engine, next(iter(of.values()))).constant(f.name) for f in free}


def fit(
    runs: Sequence[Run], free: Sequence[Free], what: str, fixed: Values, evaluations: int, softness: float
) -> dict[Free, float]:  # fmt: skip
    """Least soft-L1 distance of the logarithms, inside the bounds, from the shipped values."""
    predict = Predictor(runs)
    scale = np.array([f.high for f in free])
    low = np.array([f.low for f in free]) / scale
    start = np.array(list(shipped(runs, free).values())) / scale

    def residuals(x: np.ndarray) -> np.ndarray:
        predict({**fixed, **dict(zip(free, x * scale, strict=True))})
        return np.array([r.log_error(what) for r in runs if what == "step" or r.closed])

    inside = np.clip(start, low + 1e-4, 1 - 1e-4)
    x = least_squares(
        residuals,
        inside,
        bounds=(low, np.ones(len(free))),
        loss="soft_l1",
        f_scale=softness,
        diff_step=0.03,
        max_nfev=evaluations,
    ).x
    return dict(zip(free, x * scale, strict=True))


def fit_all(runs: Sequence[Run], evaluations: int) -> dict[Free, float]:
    step = fit(runs, STEP, "step", {}, evaluations, 0.1)
    return {**step, **fit(runs, QUEUE, "ttft", step, evaluations, 0.03)}


def report(title: str, runs: Sequence[Run]) -> None:
    print(f"\n{title}")
    shown: tuple[tuple[str, str, Callable[[Run], float]], ...] = (
        ("TPOT", "tpot_ms", lambda r: r.tpot_s * 1e3),
        ("TTFT", "ttft_ms", lambda r: r.ttft_s * 1e3),
        ("output tok/s", "output_tok_s", lambda r: r.output),
    )
    for closed, load in ((True, "closed loop"), (False, "offline")):
        for name, key, value in shown if closed else shown[2:]:
            ratios = np.array([value(r) / r.record.measured[key] for r in runs if r.closed is closed])
            if len(ratios):
                e, q = np.abs(ratios - 1), np.quantile(1 / ratios, (0.1, 0.9))
                print(
                    f"  {load:12}{name:14}{len(ratios):5} runs  median {np.median(e):6.1%}  p90 {np.quantile(e, 0.9):6.1%}"
                    f"  bias {np.median(ratios) - 1:+6.1%}  80% of measured / predicted in {q[0]:.2f} to {q[1]:.2f}"
                )


def main(argv: list[str]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="crossvalidate.py serving", description=__doc__, formatter_class=raw)
    parser.add_argument("file", type=Path, help="run records")
    parser.add_argument("--fit", action="store_true", help="fit on all runs and print the constants")
    parser.add_argument("--folds", action="store_true", help="cross-validate over model families")
    parser.add_argument("--evaluations", type=int, default=6, metavar="N", help="iterations of a fit (default 6)")
    args = parser.parse_args(argv)
    runs = read(args.file)
    Predictor(runs)({})
    report("Shipped constants", runs)
    if args.fit:
        values = fit_all(runs, args.evaluations)
        for f, v in values.items():
            print(f"  {f.engine or 'every engine':14}{f.name:30}{v:.3g}")
        Predictor(runs)(values)
        report("Fitted on all runs", runs)
    if args.folds:
        families, held_out = sorted({family(r) for r in runs}), []
        for name in families:
            own, others = [r for r in runs if family(r) == name], [r for r in runs if family(r) != name]
            Predictor(own)(fit_all(others, args.evaluations))
            report(f"{name}: fitted on the other families", own)
            held_out += [replace(r) for r in own]  # the next fold predicts these runs again
        report(f"Out of fold over {len(families)} families", held_out)


def family(run: Run) -> str:
    """Models that share an architecture and its name: the words in front of the first figure of the version."""
    name = run.record.name.rsplit("/", 1)[-1].lower()
    return name.split("-")[0] if not name.startswith("llama-4") else "llama-4"
