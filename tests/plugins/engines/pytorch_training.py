"""What four processes do with planned modules; figures by name. Started by ``test_pytorch_composition``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pytorch_models import MLP, Decoder, tokens
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import autoparallel_core as ap
from autoparallel_core.errors import SpecError

STEPS = 10


class Dropping(nn.Module):
    """A dropout between two matrices, on activations that a plan cuts and copies."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.dropout(self.up(x), 0.5, self.training)).square().sum()


def fresh(kind: type[nn.Module] = Decoder) -> nn.Module:
    torch.manual_seed(0)
    return kind(layers=1) if kind is Decoder else kind()


def train(module: nn.Module, call: Callable[..., torch.Tensor] | None = None, steps: int = STEPS, **adamw: Any) -> list[float]:
    """Losses of some steps of AdamW."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, **adamw)
    return list(_steps(module, optimizer, call or module, tokens(), steps))


def _steps(module: nn.Module, optimizer: Any, call: Any, inputs: dict[str, torch.Tensor], steps: int) -> Iterator[float]:
    for _ in range(steps):
        loss = call(**inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())
    del module


def worker(rank: int, folder: str, plans: dict[str, str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    alone = fresh()
    losses = train(alone)
    found: dict[str, Any] = {}

    def compared(name: str, module: nn.Module, got: list[float]) -> None:
        expected = losses[-len(got) :] if name == "checkpoint file" else losses[: len(got)]
        found[name] = max(abs(a - b) / b for a, b in zip(got, expected, strict=True))
        if len(got) == STEPS or name == "checkpoint file":
            pairs = zip(module.parameters(), alone.parameters(), strict=True)
            found[f"{name}: weights"] = max(float((p.full_tensor() - q).norm() / q.norm()) for p, q in pairs)

    for optimizer in ("foreach", "fused"):
        module = ap.apply(fresh(), plans["joint"], mesh)
        compared(optimizer, module, train(module, **{optimizer: True}))

    module = ap.apply(fresh(), plans["joint"], mesh)
    compared("checkpoint around", module, train(module, lambda **x: checkpoint(module, use_reentrant=False, **x)))

    _fsdp(mesh, plans, compared, found)
    _file(mesh, plans, folder, compared)
    _dropout(rank, plans, found)
    _compiled(mesh, plans, found)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _fsdp(mesh: Any, plans: dict[str, str], compared: Any, found: dict[str, Any]) -> None:
    """Plans for the inner dimension; FSDP shards over the outer one, whose ranks have a part of the batch each."""

    def mean_losses(module: nn.Module) -> list[float]:
        part = {k: x.chunk(2)[mesh.get_local_rank("dp")] for k, x in tokens().items()}
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=False)
        got = torch.tensor(list(_steps(module, optimizer, module, part, STEPS)), dtype=torch.float64)
        dist.all_reduce(got, group=mesh.get_group("dp"))
        return (got / 2).tolist()

    whole = ap.apply(fresh(), plans["inner"], mesh["tp"])
    fully_shard(whole, mesh=mesh["dp"])
    compared("fsdp", whole, mean_losses(whole))

    blocks = fresh()
    for layer in blocks.layers:
        fully_shard(ap.apply(layer, plans["block"], mesh["tp"]), mesh=mesh["dp"])
    fully_shard(blocks, mesh=mesh["dp"])
    compared("fsdp of blocks", blocks, mean_losses(blocks))

    inside = ap.apply(fresh(), plans["inner"], mesh["tp"])
    fully_shard(inside.layers[0], mesh=mesh["dp"])
    try:
        inside(**{k: x[:4] for k, x in tokens().items()})
    except SpecError as e:
        found["refused"] = str(e)


def _file(mesh: Any, plans: dict[str, str], folder: str, compared: Any) -> None:
    """Half of the steps, a checkpoint, and the other half under another plan on another mesh."""
    module = ap.apply(fresh(), plans["joint"], mesh)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    list(_steps(module, optimizer, module, tokens(), STEPS // 2))
    model_state, optimizer_state = get_state_dict(module, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/checkpoint")
    other = ap.apply(Decoder(layers=1), plans["other"])
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    model_state, optimizer_state = get_state_dict(other, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
    set_state_dict(other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    compared("checkpoint file", other, list(_steps(other, optimizer, other, tokens(), STEPS // 2)))


def _dropout(rank: int, plans: dict[str, str], found: dict[str, Any]) -> None:
    """Ranks whose generators differ agree on what is dropped, and a checkpointed step drops the same again."""
    module = fresh(Dropping)
    torch.manual_seed(100 + rank)
    module = ap.apply(module, plans["dropping"])
    x, state, grads = torch.ones(8, 16), torch.get_rng_state(), []
    for call in (module, lambda x: checkpoint(module, x, use_reentrant=False)):
        torch.set_rng_state(state)
        loss = call(x)
        loss.backward()
        grads.append([p.grad.full_tensor() for p in module.parameters()])
        module.zero_grad()
    losses = [torch.zeros(()) for _ in range(4)]
    dist.all_gather(losses, loss.detach())
    found["dropout: ranks"] = float(max(abs(x - losses[0]) for x in losses) / losses[0])
    found["dropout: again"] = max(float((a - b).norm() / b.norm()) for a, b in zip(*grads, strict=True))
    found["dropout: differs"] = float(abs(module(x).detach() - loss.detach()))


def _compiled(mesh: Any, plans: dict[str, str], found: dict[str, Any]) -> None:
    alone, x = fresh(MLP), torch.linspace(-1, 1, 128).view(8, 16)
    module = ap.apply(fresh(MLP), plans["mlp"], mesh)
    expected, got = alone(x), torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    expected.sum().backward()
    got = got.full_tensor() if hasattr(got, "full_tensor") else got
    got.sum().backward()
    pairs = [
        (got, expected),
        *((p.grad.full_tensor(), q.grad) for p, q in zip(module.parameters(), alone.parameters(), strict=True)),
    ]
    found["compiled"] = max(float((a - b).norm() / b.norm()) for a, b in pairs)
