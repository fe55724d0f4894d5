"""CPU seconds and peak memory of planning a module, each row in its own process: imports, trace, search, program, document.

Usage: python benchmarks/pytorch_planner.py [ROW …]; rows are numbered in ROWS. Needs the extra ``torch``; runs on one thread.
The module has the shapes of Llama-3-8B, 8192 tokens per sequence, two sequences for every group of the last dimension.
The peer is meta-pytorch/autoparallel of June 2026, measured on such a machine with a shim for its GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    import torch

SEQ_LEN, VOCAB = 8192, 128256
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@frozen
class Row:
    """One question, what it may take, and what the peer takes for it."""

    mesh: str
    layers: int
    most_cpu_s: float
    most_bytes: float
    peer: str
    verified: bool = False


ROWS = (
    Row("dp=64", 32, 18.0, 1.5e9, "37 s, 1.9 GB"),
    Row("dp=32,tp=8", 8, 25.0, 1.5e9, "106 s, 2.4 GB"),
    Row("dp=32,tp=8", 32, 40.0, 1.5e9, "not run"),
    Row("dp=8,fsdp=8,tp=4", 32, 90.0, 1.5e9, "not past enumeration in 68 s for one layer"),
    Row("pod=2,dp=4,fsdp=4,tp=4", 2, float("inf"), float("inf"), "-", verified=True),
)


def build(layers: int, *, hidden: int = 4096, heads: int = 32, groups: int = 8, width: int = 14336, vocab: int = VOCAB) -> Any:
    """A decoder with rotary positions, grouped-query attention, a gated feed-forward and the loss."""
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.float()
            return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            head = hidden // heads
            self.wq, self.wo = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
            self.wk, self.wv = (nn.Linear(hidden, groups * head, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(hidden, width, bias=False) for _ in range(2))
            self.down = nn.Linear(width, hidden, bias=False)
            self.attention_norm, self.mlp_norm = Norm(), Norm()

        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            y = self.attention_norm(x)
            q, k, v = (
                w(y).unflatten(-1, (n, hidden // heads)).transpose(1, 2)
                for w, n in ((self.wq, heads), (self.wk, groups), (self.wv, groups))
            )
            q, k = turned(q, cos, sin), turned(k, cos, sin)
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.wo(a.transpose(1, 2).flatten(2))
            y = self.mlp_norm(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(vocab, hidden), nn.Linear(hidden, vocab, bias=False)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = Norm()

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            half = hidden // heads // 2
            rate = 500000.0 ** (-torch.arange(half, device=tokens.device) / half)
            angle = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), rate).repeat(1, 2)
            x = self.embed(tokens)
            cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
            for layer in self.layers:
                x = layer(x, cos, sin)
            return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())

    return Decoder()


def measure(row: Row) -> dict[str, Any]:
    """Plan in this process."""
    import torch

    import autoparallel_core as ap

    torch.set_num_threads(1)
    sizes = [int(part.partition("=")[2]) for part in row.mesh.split(",")]
    batch = 2 * sizes[0]
    for s in sizes[1:-1]:
        batch *= s
    with torch.device("meta"):
        module = build(row.layers).to(torch.bfloat16)
        inputs = {k: torch.empty(batch, SEQ_LEN, dtype=torch.int64) for k in ("tokens", "labels")}
    started = time.perf_counter()
    plan = ap.plan(module, inputs, row.mesh, gpu="H100")
    found = {
        "cpu_s": time.process_time(),
        "wall_s": time.perf_counter() - started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "step_s": plan.step_s,
        "gap": plan.gap,
        "plan_bytes": plan.peak_bytes,
        "programs": plan.document["search"]["programs"],
    }
    if row.verified:
        found["verified"] = verified(plan)
    return found


def verified(plan: Any) -> bool:
    """Whether a small copy of the module, replayed as planned, equals the unsharded one."""
    import torch

    import autoparallel_core as ap

    small = build(2, hidden=128, heads=16, groups=16, width=128, vocab=128)
    tokens = torch.randint(0, 128, (2, 16, 16))
    found = ap.module_planning.planner_of(ap.host()).verify(plan, {"module": small, "inputs": tuple(tokens)})
    return bool(found["passed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, help="numbers of ROWS (default: all)")
    parser.add_argument("--here", type=int, help="plan one row in this process, and print it as JSON")
    args = parser.parse_args()
    if args.here is not None:
        print(json.dumps(measure(ROWS[args.here])))
        return
    head = (("mesh", 24), ("layers", 7), ("CPU s", 8), ("must", 6), ("peak GB", 9), ("must", 6), ("step s", 9), ("gap", 8))
    print("".join(f"{name:>{w}}" if i else f"{name:<{w}}" for i, (name, w) in enumerate(head)) + "  peer")
    broken = 0
    for i in args.rows or range(len(ROWS)):
        row = ROWS[i]
        command = [sys.executable, __file__, "--here", str(i)]
        done = subprocess.run(command, env=os.environ | ONE_THREAD, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        holds = found["cpu_s"] <= row.most_cpu_s and found["peak_bytes"] <= row.most_bytes and found.get("verified", True)
        broken += not holds
        end = f"  verified: {found['verified']}" if row.verified else ""
        print(
            f"{row.mesh:<24}{row.layers:>7}{found['cpu_s']:>8.1f}{row.most_cpu_s:>6.0f}{found['peak_bytes'] / 1e9:>9.2f}"
            f"{row.most_bytes / 1e9:>6.1f}{found['step_s']:>9.4f}{found['gap']:>8.2%}  {row.peer}{end}"
            + ("" if holds else "  MISSED"),
            flush=True,
        )
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
