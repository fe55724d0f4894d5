"""Profile this machine, predict a tiny transformer's step under several strategies, run them for real, compare.

    python benchmarks/closed_loop.py [--worlds 1,2,4] [--rounds 8] [--json FILE]

Needs torch, no GPU: ranks are processes with gloo between them. For each number of ranks the machine is profiled with so
many ranks working at once (``autoparallel profile``), every strategy's step time is predicted from that profile alone, and
the same strategies are run with torch's own tensor, data and pipeline parallelism (closed_loop_run.py). Printed are step
times, errors, and the rank correlation (Kendall's tau) of predicted and measured times. Ranks beyond the cores share them
(closed_loop_sharing.py).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from closed_loop_run import BATCH, MODEL, SEQ_LEN, worker
from closed_loop_sharing import shared_pipeline_s

STRATEGIES = {
    1: ("tp1 pp1 dp1 mbs8", "tp1 pp1 dp1 mbs32"),
    2: ("dp2 mbs16", "dp2 zero3 mbs16", "tp2 mbs32", "tp2 mbs8", "pp2 mbs16", "pp2 mbs4", "dp2 mbs2"),
    4: (
        "dp4 mbs8", "dp4 zero3 mbs8", "tp4 mbs32", "tp2 dp2 mbs16", "pp2 dp2 mbs8", "pp2 dp2 mbs2", "pp4 mbs8", "pp4 mbs4",
        "tp2 pp2 mbs16", "tp2 pp2 mbs4",
    ),
}  # fmt: skip
"""By number of ranks: mixes of tensor, pipeline and data parallelism, with coarse and fine micro-batches."""
SOFTWARE = {
    "elementwise": "eager", "dp_overlap": True, "p2p_overlap": False, "grad_dtype": "bf16", "attention_kernel": "flash2",
}  # fmt: skip
"""What of the run differs from the engine's defaults: nothing is compiled, gradients are reduced as they are."""
Rounds = list[list[float]]
"""Seconds by strategy and round."""


def profile(ranks: int, folder: Path) -> Path:
    """Measure this machine with so many ranks at once."""
    config, output = folder / "config.json", folder / f"profile-{ranks}.json"
    config.write_text(json.dumps(MODEL))
    command = [
        sys.executable, "-m", "autoparallel_core.cli.main", "profile", "--device", "cpu", "--ranks", str(ranks), "--threads", "1",
        "--model-path", str(config), "--output", str(output), "--fresh",
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "XDG_CACHE_HOME": str(folder)}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return output


def predict(path: Path, texts: Sequence[str], cores: int) -> list[float]:
    """Predicted seconds of a step of each strategy."""
    from autoparallel_core import host
    from autoparallel_core.cluster import build_cluster
    from autoparallel_core.cost.chunk_times import chunk_times
    from autoparallel_core.measured import gpu_of_profile, measured_gpu
    from autoparallel_core.models import build_arch
    from autoparallel_core.problem import make_problem
    from autoparallel_core.search.evaluate import evaluate
    from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
    from autoparallel_core.spec.workload import TrainingWorkload

    plugins = host()
    device = gpu_of_profile(str(path), plugins)
    assert device is not None, "the profile describes its device"
    data = measured_gpu(device, plugins, profile_data=str(path))
    arch = build_arch(MODEL, name="tiny", host=plugins)
    workload = TrainingWorkload(seq_len=SEQ_LEN, global_batch_size=BATCH)
    strategies = [parse_strategy(t) for t in texts]
    cluster = build_cluster(data.gpu, strategies[0].world)
    problem = data.applied_to(make_problem(arch, cluster, workload, engine="torchtitan", software=SOFTWARE, host=plugins))
    figures = evaluate(problem, StrategyBatch.of(strategies), plugins)
    times = [float(t) for t in figures.total_s]
    for i, s in enumerate(strategies):
        if s.pp == 1 or s.world <= cores:
            continue
        chunks, alone = chunk_times(problem, s), cores / s.world
        sent = chunks.transfer_s * alone
        pipeline = shared_pipeline_s(
            BATCH // s.dp // s.mbs,
            [t * alone + (sent if c < s.pp - 1 else 0.0) for c, t in enumerate(chunks.forward_s)],
            [
                (a + b) * alone + (sent if c else 0.0)
                for c, (a, b) in enumerate(zip(chunks.input_s, chunks.weight_s, strict=True))
            ],
            width=s.tp * s.dp,
            cores=cores,
        )
        times[i] = float(pipeline) + sum(float(figures.seconds[c][i]) for c in ("dp_comm", "fsdp_comm", "optimizer"))
    return times


def measure(ranks: int, texts: Sequence[str], rounds: int, folder: Path) -> Rounds:
    """Seconds of a step of each strategy in every round, run by torch in turns."""
    out = folder / f"measured-{ranks}.json"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__, "--worker",
        "--rounds", str(rounds), "--json", str(out), *texts,
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-4000:]}")
    times: Rounds = json.loads(out.read_text())
    return times


def processor_seconds() -> tuple[float, float]:
    """Of all programs on this machine since it started, and of those that this one has started and that have ended."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, *rest = (float(x) for x in first)
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def best(rounds: Sequence[float]) -> float:
    """The best round, since whatever else runs on the machine only adds time."""
    return min(rounds)


def noise(measured: Rounds) -> float:
    """How well a measurement repeats: between the best of the even and of the odd rounds, median over the strategies."""
    halves = [(best(r[::2]), best(r[1::2])) for r in measured if len(r) > 1]
    return statistics.median(abs(a / b - 1.0) for a, b in halves) if halves else 0.0


def tau(pairs: Sequence[tuple[float, float]], apart: float = 0.0) -> float:
    """Kendall's rank correlation of predicted and measured, of the pairs measured further ``apart`` than this share."""
    signs = [(p1 - p2) * (m1 - m2) for (p1, m1), (p2, m2) in combinations(pairs, 2) if abs(m1 - m2) > apart * max(m1, m2)]
    return sum((s > 0) - (s < 0) for s in signs) / len(signs) if signs else 0.0


Row = tuple[str, float, float]


def summary(rows: Sequence[Row], apart: float) -> str:
    pairs = [(p, m) for _, p, m in rows]
    error = statistics.median(abs(p / m - 1) for p, m in pairs)
    return f"median error {error:.0%}, tau {tau(pairs):.2f} ({tau(pairs, apart):.2f} of the pairs more than {apart:.1%} apart)"


def show(title: str, rows: Sequence[Row], apart: float) -> None:
    print(f"\n{title}\n{'strategy':<24}{'predicted ms':>14}{'measured ms':>14}{'error':>9}")
    for text, predicted, measured in sorted(rows, key=lambda r: r[2]):
        print(f"{text:<24}{predicted * 1e3:>14.0f}{measured * 1e3:>14.0f}{predicted / measured - 1:>+9.0%}")
    print(summary(rows, apart))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--worlds", default="1,2,4", help="numbers of ranks (default 1,2,4)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write profiles' predictions and measurements here")
    parser.add_argument("--keep", type=Path, help="folder for profiles and measurements")
    parser.add_argument("--again", type=Path, help="predict from what --keep kept, and measure nothing")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("strategies", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        worker(args.strategies, args.rounds, args.json)
        return 0
    cores = len(os.sched_getaffinity(0))
    found: dict[int, list[Row]] = {}
    apart = []
    started, before = time.monotonic(), processor_seconds()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.again or args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for ranks in (int(w) for w in args.worlds.split(",")):
            texts = STRATEGIES[ranks]
            if args.again:
                path, rounds = folder / f"profile-{ranks}.json", json.loads((folder / f"measured-{ranks}.json").read_text())
            else:
                path, rounds = profile(ranks, folder), measure(ranks, texts, args.rounds, folder)
            found[ranks] = list(zip(texts, predict(path, texts, cores), map(best, rounds), strict=True))
            apart.append(noise(rounds))
            show(f"{ranks} ranks", found[ranks], apart[-1])
    everything = [(f"{n}: {t}", p, m) for n, rows in found.items() for t, p, m in rows]
    print(f"\nall {len(everything)} runs on {cores} cores: {summary(everything, max(apart))}")
    if not args.again:
        busy, own = (b - a for a, b in zip(before, processor_seconds(), strict=True))
        print(f"other programs took {max(busy - own, 0.0) / (time.monotonic() - started) / cores:.0%} of the cores meanwhile")
    if args.json:
        args.json.write_text(json.dumps({str(n): rows for n, rows in found.items()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
