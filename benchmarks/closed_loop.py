"""Profile this machine, predict a tiny transformer's step under several strategies, run them for real, compare.

    python benchmarks/closed_loop.py [--worlds 2,4] [--rounds 5] [--json FILE]

Needs torch, no GPU: ranks are processes with gloo between them. For each number of ranks the machine is profiled with so
many ranks working at once (``autoparallel profile``), every strategy's step time is predicted from that profile alone, and
the same strategies are run with torch's own tensor parallelism (DTensor), data parallelism (DistributedDataParallel, FSDP2)
and pipelining. Printed are step times, errors, and the rank correlation (Kendall's tau) of predicted and measured times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

MODEL = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
    "head_dim": 32, "intermediate_size": 1024, "vocab_size": 1024, "max_position_embeddings": 1024, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
SEQ_LEN, BATCH = 128, 32
STRATEGIES = {
    1: ("tp1 pp1 dp1 mbs8", "tp1 pp1 dp1 mbs32"),
    2: ("dp2 mbs16", "dp2 zero3 mbs16", "tp2 mbs32", "tp2 mbs8", "pp2 mbs16", "pp2 mbs4", "dp2 mbs2"),
    4: (
        "dp4 mbs8", "dp4 zero3 mbs8", "tp4 mbs32", "tp2 dp2 mbs16", "pp2 dp2 mbs8", "pp2 dp2 mbs2", "pp4 mbs8", "pp4 mbs4",
        "tp2 pp2 mbs16", "tp2 pp2 mbs4",
    ),
}  # fmt: skip
"""By number of ranks: mixes of tensor, pipeline and data parallelism, with coarse and fine micro-batches."""


# -- predicted ----------------------------------------------------------------------------------------------------------


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


def predict(path: Path, texts: Sequence[str]) -> list[float]:
    """Predicted seconds of a step of each strategy."""
    from autoparallel_core import host
    from autoparallel_core.cluster import build_cluster
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
    software = {
        "elementwise": "eager",
        "dp_overlap": True,
        "p2p_overlap": False,
        "grad_dtype": "bf16",
        "attention_kernel": "flash2",
    }
    problem = make_problem(
        arch, build_cluster(data.gpu, strategies[0].world), workload, engine="torchtitan", software=software, host=plugins
    )
    figures = evaluate(data.applied_to(problem), StrategyBatch.of(strategies), plugins)
    return [float(t) for t in figures.total_s]


# -- run ----------------------------------------------------------------------------------------------------------------


def measure(ranks: int, texts: Sequence[str], rounds: int, folder: Path) -> list[float]:
    """Seconds of a step of each strategy, run by torch in turns: the best round, since other processes only add time."""
    out = folder / f"measured-{ranks}.json"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__, "--worker",
        "--rounds", str(rounds), "--json", str(out), *texts,
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-4000:]}")
    times: list[float] = json.loads(out.read_text())
    return times


def worker(texts: Sequence[str], rounds: int, out: Path) -> None:
    """One rank: build every strategy, then take turns, so that a busy minute of the machine hits all alike."""
    import torch
    from torch import distributed

    from autoparallel_core.spec.strategy import parse_strategy

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    steps = [_step_of(torch, parse_strategy(t)) for t in texts]
    times: list[list[float]] = [[] for _ in texts]
    for turn in range(rounds + 1):
        for step, mine in zip(steps, times, strict=True):
            distributed.barrier()
            started = time.perf_counter()
            step()
            distributed.barrier()
            if turn:  # the first one warms up
                mine.append(time.perf_counter() - started)
    if distributed.get_rank() == 0:
        out.write_text(json.dumps([min(t) for t in times]))
    distributed.destroy_process_group()


def _step_of(torch: Any, s: Any) -> Callable[[], None]:
    """A function that runs one optimizer step of the strategy on this rank."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (s.pp, s.dp, s.tp), mesh_dim_names=("pp", "dp", "tp"))
    place = mesh.get_local_rank("pp")
    torch.manual_seed(0)
    layers = MODEL["num_hidden_layers"] // s.pp
    part = _transformer(torch, layers, s.tp, first=place == 0, last=place == s.pp - 1)
    if s.tp > 1:
        _shard(part, mesh["tp"])
    if s.dp > 1 and s.zero == 3:
        from torch.distributed.fsdp import fully_shard

        for layer in part.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(part, mesh=mesh["dp"])
    reduced = _reducer(torch, part, mesh["dp"]) if s.dp > 1 and s.zero < 3 else None
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, foreach=False)
    tokens = torch.randint(0, MODEL["vocab_size"], (BATCH // s.dp, SEQ_LEN))
    run = _pipelined(torch, part, mesh["pp"], s, tokens) if s.pp > 1 else _plain(torch, part, s, tokens)

    def step() -> None:
        run()
        if reduced is not None:
            reduced()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def _plain(torch: Any, model: Any, s: Any, tokens: Any) -> Callable[[], None]:
    def run() -> None:
        for piece in tokens.split(s.mbs):
            _loss(torch, model(piece), piece).backward()

    return run


def _pipelined(torch: Any, part: Any, mesh: Any, s: Any, tokens: Any) -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    place, group = mesh.get_local_rank(), mesh.get_group()
    first, last = place == 0, place == s.pp - 1
    stage = PipelineStage(part, place, s.pp, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, len(tokens) // s.mbs, loss_fn=lambda out, target: _loss(torch, out, target))

    def run() -> None:
        if first:
            schedule.step(tokens)
        elif last:
            schedule.step(target=tokens, losses=[])
        else:
            schedule.step()

    return run


def _loss(torch: Any, logits: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def _reducer(torch: Any, model: Any, mesh: Any) -> Callable[[], None]:
    """One all-reduce of all gradients at the end of the step, in buckets as DistributedDataParallel has them."""
    group, size = mesh.get_group(), mesh.size()

    def reduce() -> None:
        grads = [g.to_local() if hasattr(g, "to_local") else g for p in model.parameters() if (g := p.grad) is not None]
        flat = torch.cat([g.flatten() for g in grads])
        torch.distributed.all_reduce(flat, group=group)
        flat /= size
        for g, piece in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            g.copy_(piece.view_as(g))

    return reduce


def _transformer(torch: Any, layers: int, tp: int, *, first: bool, last: bool) -> Any:
    """The decoder (or a stage of it): pre-norm, rotary-free attention, gated feed-forward, 16-bit weights."""
    nn, f = torch.nn, torch.nn.functional
    h, width, inner = MODEL["hidden_size"], MODEL["head_dim"], MODEL["intermediate_size"]

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)
            self.q, self.k, self.v, self.o = (nn.Linear(h, h, bias=False) for _ in range(4))
            self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((h, inner), (h, inner), (inner, h)))

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            y = self.norm1(x)
            q, k, v = (p(y).view(b, s, -1, width).transpose(1, 2) for p in (self.q, self.k, self.v))
            a = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(a.transpose(1, 2).reshape(b, s, h // tp))
            y = self.norm2(x)
            return x + self.down(f.silu(self.gate(y)) * self.up(y))

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(MODEL["vocab_size"], h) if first else None
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.RMSNorm(h) if last else None
            self.head = nn.Linear(h, MODEL["vocab_size"], bias=False) if last else None

        def forward(self, x: Any) -> Any:
            x = self.embed(x) if self.embed is not None else x
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x)) if self.norm is not None and self.head is not None else x

    return Part().to(torch.bfloat16)


def _shard(part: Any, mesh: Any) -> None:
    """Column- and row-parallel matrices; the head gathers its logits."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    column, row = ColwiseParallel(), RowwiseParallel()
    for layer in part.layers:
        plan = dict.fromkeys(("q", "k", "v", "gate", "up"), column) | dict.fromkeys(("o", "down"), row)
        parallelize_module(layer, mesh, plan)
    if part.head is not None:
        parallelize_module(part, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


# -- compare ------------------------------------------------------------------------------------------------------------


def tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's rank correlation of predicted and measured; pairs measured within a hundredth of each other do not count."""
    signs = [(p1 - p2) * (m1 - m2) for (p1, m1), (p2, m2) in combinations(pairs, 2) if abs(m1 - m2) > 0.01 * max(m1, m2)]
    return sum((s > 0) - (s < 0) for s in signs) / len(signs) if signs else 0.0


def show(title: str, rows: Sequence[tuple[str, float, float]]) -> None:
    print(f"\n{title}\n{'strategy':<24}{'predicted ms':>14}{'measured ms':>14}{'error':>9}")
    for text, predicted, measured in sorted(rows, key=lambda r: r[2]):
        print(f"{text:<24}{predicted * 1e3:>14.1f}{measured * 1e3:>14.1f}{predicted / measured - 1:>+9.0%}")
    errors = [abs(p / m - 1) for _, p, m in rows]
    print(f"median error {statistics.median(errors):.0%}, tau {tau([(p, m) for _, p, m in rows]):.2f}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--worlds", default="1,2,4", help="numbers of ranks (default 1,2,4)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for profiles and measurements")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("strategies", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        worker(args.strategies, args.rounds, args.json)
        return 0
    found: dict[int, list[tuple[str, float, float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for ranks in (int(w) for w in args.worlds.split(",")):
            texts = STRATEGIES[ranks]
            predicted = predict(profile(ranks, folder), texts)
            found[ranks] = list(zip(texts, predicted, measure(ranks, texts, args.rounds, folder), strict=True))
            show(f"{ranks} ranks", found[ranks])
    everything = [(f"{n}: {t}", p, m) for n, rows in found.items() for t, p, m in rows]
    errors = [abs(p / m - 1) for _, p, m in everything]
    cores = len(os.sched_getaffinity(0))
    print(f"\nall {len(everything)} runs on {cores} cores: median error {statistics.median(errors):.0%}, "
          f"tau {tau([(p, m) for _, p, m in everything]):.2f}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps({str(n): rows for n, rows in found.items()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
