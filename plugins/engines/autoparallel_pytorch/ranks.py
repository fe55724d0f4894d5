"""Run a program on all ranks of a small mesh: in one process that plays them all, or in as many processes."""

from __future__ import annotations

import copy
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from attrs import define

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.apply import Runner, distribute, install
from autoparallel_pytorch.program import Program
from autoparallel_pytorch.structure import flatten
from autoparallel_pytorch.trace import call

_NAMES = {
    "all_gather_into_tensor": "all_gather", "all_reduce": "all_reduce", "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}  # fmt: skip
"""What ``CommDebugMode`` counts, as plans call it."""


@define
class Payload:
    """Everything a rank needs."""

    program: Program
    structure: Any
    constants: dict[str, Any]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    module: torch.nn.Module
    inputs: dict[str, Any]

    @property
    def n(self) -> int:
        n = 1
        for s in self.sizes:
            n *= s
        return n


@define
class Got:
    """What one step gave, whole tensors."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    counted: Counter[str]


def run_local(payload: Payload) -> Got:
    """All ranks in this process. Raises SpecError when a process group of another size is open."""
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    opened = not dist.is_initialized()
    if opened:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=payload.n)
    elif dist.get_world_size() != payload.n:
        raise SpecError(
            f"a process group of {dist.get_world_size()} ranks is open; verifying this plan needs one of {payload.n}, or none"
        )
    try:
        with LocalTensorMode(payload.n) as mode:
            module = copy.deepcopy(payload.module)
            _everywhere(module, mode)
            inputs, structure = flatten(payload.inputs)
            named = structure.build([_copies(x, mode) if isinstance(x, torch.Tensor) else x for x in inputs])
            got = _step(module, payload, named)
            return Got([_one(x) for x in got.outputs], {n: _one(g) for n, g in got.gradients.items()}, got.counted)
    finally:
        if opened:
            dist.destroy_process_group()


def _one(x: Any) -> torch.Tensor:
    return x.reconcile() if hasattr(x, "reconcile") else x


def _copies(x: torch.Tensor, mode: Any) -> torch.Tensor:
    return mode.rank_map(lambda _rank: x.detach().clone()).requires_grad_(x.requires_grad)  # type: ignore[no-any-return]


def _everywhere(module: torch.nn.Module, mode: Any) -> None:
    """Give every simulated rank its copy of parameters and buffers; tied ones stay tied."""
    made: dict[int, Any] = {}
    for name, p in list(module.named_parameters(remove_duplicate=False)):
        owner, _, last = name.rpartition(".")
        made.setdefault(id(p), torch.nn.Parameter(_copies(p, mode), requires_grad=p.requires_grad))
        setattr(module.get_submodule(owner), last, made[id(p)])
    for name, b in list(module.named_buffers()):
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, _copies(b, mode))


def _step(module: torch.nn.Module, payload: Payload, named: Mapping[str, Any]) -> Got:
    """Forward and backward as planned; gathers of whole tensors for the comparison are not counted."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.debug import CommDebugMode

    from autoparallel_pytorch.verify import loss_of

    mesh = init_device_mesh("cpu", payload.sizes, mesh_dim_names=payload.names)
    distribute(module, payload.program, mesh)
    install(module, Runner(payload.program, mesh, payload.structure, constants=payload.constants))
    counter = CommDebugMode()
    with counter, _quiet():
        leaves, _ = flatten(call(module, named))
        outputs = [x for x in leaves if isinstance(x, torch.Tensor)]
        # The gradient of a sum of squares is local: every rank starts from its own piece.
        loss_of([x.to_local() if isinstance(x, DTensor) else x for x in outputs]).backward()
    counted: Counter[str] = Counter()
    for op, n in counter.get_comm_counts().items():
        name = str(op).rpartition(".")[2]
        counted[_NAMES.get(name, name)] += n
    with torch.no_grad():
        gradients = {n: _whole(p.grad) for n, p in module.named_parameters() if p.grad is not None}
        gradients |= input_gradients(named)
        return Got([_whole(x) for x in outputs], gradients, counted)


def input_gradients(named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Gradients that reached a call's arguments."""
    leaves, structure = flatten(dict(named))
    found = zip(structure.paths(), leaves, strict=True)
    return {f"input {n}": x.grad for n, x in found if isinstance(x, torch.Tensor) and x.grad is not None}


def gathered_inputs(program: Program) -> int:
    """All-gathers that give whole gradients of inputs that every rank has whole."""
    return sum(p >= 0 for n in program.input_gradients for p in program.values[program.inputs[n]].placements)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on the comparison itself.

    ``CommDebugMode`` puts hooks on every module, and whole tensors are gathered one mesh dimension at a time.
    """
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*ackward hook", category=UserWarning)
        yield


def _whole(x: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x


def run_processes(payload: Payload, folder: Path) -> Got:
    """One process per rank over gloo; they meet in a file. Raises SpecError when one of them fails."""
    from torch.multiprocessing.spawn import ProcessRaisedException, spawn

    torch.save(payload, folder / "payload.pt")
    try:
        spawn(_rank, args=(str(folder), payload.n), nprocs=payload.n)
    except ProcessRaisedException as e:
        raise SpecError(f"a rank failed: {str(e).strip().splitlines()[-1]}") from e
    got: Got = torch.load(folder / "got.pt", weights_only=False)
    return got


def _rank(rank: int, folder: str, n: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=rank, world_size=n)
    payload: Payload = torch.load(Path(folder) / "payload.pt", weights_only=False)
    got = _step(payload.module, payload, payload.inputs)
    if rank == 0:
        got.outputs = [x.detach() for x in got.outputs]
        torch.save(got, Path(folder) / "got.pt")
    dist.destroy_process_group()
