"""The run half of the closed loop: a tiny decoder under a strategy, as torchtitan parallelises it, timed by its ranks.

Started by closed_loop.py with torchrun; every rank is a process with one thread, and gloo is between them. Tensor
parallelism is DTensor's with sequence parallelism (column- and row-parallel matrices, norms on the local tokens, one gather
before and one scatter after each block, loss on sharded logits), sharded data parallelism is FSDP2, pipelines are
torch.distributed.pipelining's 1F1B.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

MODEL = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
    "head_dim": 32, "intermediate_size": 1024, "vocab_size": 1024, "max_position_embeddings": 1024, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
SEQ_LEN, BATCH = 128, 32
Step = Callable[[], None]


def worker(texts: Sequence[str], rounds: int, out: Path) -> None:
    """One rank: build every strategy, then take turns, so that a busy minute of the machine hits all alike.

    Rank 0 writes the seconds of every round, ``[[one strategy's rounds], …]``.
    """
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
        out.write_text(json.dumps(times))
    distributed.destroy_process_group()


def _step_of(torch: Any, s: Any) -> Step:
    """A function that runs one optimizer step of the strategy on this rank."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (s.pp, s.dp, s.tp), mesh_dim_names=("pp", "dp", "tp"))
    place = mesh.get_local_rank("pp")
    torch.manual_seed(0)
    part = _decoder(torch, MODEL["num_hidden_layers"] // s.pp, first=place == 0, last=place == s.pp - 1)
    if s.tp > 1:
        _shard(part, mesh["tp"])
    if s.dp > 1 and s.zero == 3:
        from torch.distributed.fsdp import fully_shard

        for layer in part.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(part, mesh=mesh["dp"])
    reduced = _reducer(torch, part, mesh["dp"]) if s.dp > 1 and s.zero < 3 else None
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, MODEL["vocab_size"], (BATCH // s.dp, SEQ_LEN))
    run = _pipelined(torch, part, mesh["pp"], s, tokens) if s.pp > 1 else _plain(torch, part, s, tokens)

    def step() -> None:
        with _sharded_loss(s.tp):
            run()
        if reduced is not None:
            reduced()
        if s.tp > 1:
            _whole_gradients(part)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _whole_gradients(part: Any) -> None:
    """Sum what each rank has of the norms' gradients from its own tokens, as clipping by their norm would."""
    for p in part.parameters():
        if p.grad is not None and any(x.is_partial() for x in getattr(p.grad, "placements", ())):
            p.grad = p.grad.redistribute(placements=p.placements)


def _plain(torch: Any, model: Any, s: Any, tokens: Any) -> Step:
    def run() -> None:
        for piece in tokens.split(s.mbs):
            _loss(torch, model(piece), piece).backward()

    return run


def _pipelined(torch: Any, part: Any, mesh: Any, s: Any, tokens: Any) -> Step:
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


def _sharded_loss(tp: int) -> AbstractContextManager[Any]:
    """Cross-entropy on logits whose vocabulary is sharded."""
    if tp == 1:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    context: AbstractContextManager[Any] = loss_parallel()
    return context


def _reducer(torch: Any, model: Any, mesh: Any) -> Step:
    """One all-reduce of all gradients at the end of the step, in one bucket as DistributedDataParallel has it."""
    group, size = mesh.get_group(), mesh.size()

    def reduce() -> None:
        grads = [g.to_local() if hasattr(g, "to_local") else g for p in model.parameters() if (g := p.grad) is not None]
        flat = torch.cat([g.flatten() for g in grads])
        torch.distributed.all_reduce(flat, group=group)
        flat /= size
        for g, piece in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            g.copy_(piece.view_as(g))

    return reduce


def _decoder(torch: Any, layers: int, *, first: bool, last: bool) -> Any:
    """The decoder (or a stage of it): pre-norm, rotary-free attention, gated feed-forward, 16-bit weights."""
    nn, f = torch.nn, torch.nn.functional
    h, width, inner = MODEL["hidden_size"], MODEL["head_dim"], MODEL["intermediate_size"]

    class Attention(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(h, h, bias=False) for _ in range(4))

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            q, k, v = (p(x).view(b, s, -1, width).transpose(1, 2) for p in (self.q, self.k, self.v))
            a = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o(a.transpose(1, 2).reshape(b, s, -1))

    class FeedForward(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((h, inner), (h, inner), (inner, h)))

        def forward(self, x: Any) -> Any:
            return self.down(f.silu(self.gate(x)) * self.up(x))

    class Layer(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)
            self.attention, self.ffn = Attention(), FeedForward()

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.ffn(self.norm2(x))

    class Part(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
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
    """torchtitan's plan for a dense decoder: sequence parallel between the blocks, vocabulary-parallel ends."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    tokens, whole = Shard(1), Replicate()
    gathered = PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(whole,))
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=tokens)
    for layer in part.layers:
        plan = {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": gathered, "ffn": gathered}
        plan |= {f"attention.{name}": column for name in "qkv"} | {"ffn.gate": column, "ffn.up": column}
        parallelize_module(layer, mesh, plan | {"attention.o": row, "ffn.down": row})
    ends: dict[str, Any] = {}
    if part.embed is not None:
        ends["embed"] = RowwiseParallel(input_layouts=whole, output_layouts=tokens)
    if part.head is not None:
        ends["norm"] = SequenceParallel()
        ends["head"] = ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(part, mesh, ends)
