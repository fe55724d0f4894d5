"""Replay a plan: parameters become DTensors, the forward becomes the planned program. Nothing is traced or solved."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.codegen import source
from autoparallel_pytorch.collectives import Collectives
from autoparallel_pytorch.placement import P, Placements, R, cuts
from autoparallel_pytorch.program import Program
from autoparallel_pytorch.seeds import Seeds, agreed_seed
from autoparallel_pytorch.structure import flatten, from_document
from autoparallel_pytorch.trace import bind

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh


@define(eq=False)
class Runner:
    """A program bound to a mesh."""

    program: Program
    mesh: DeviceMesh
    structure: Any
    collectives: Collectives = field(init=False)
    forward: Callable[..., Any] = field(init=False)
    backward: Callable[..., Any] = field(init=False)
    text: str = field(init=False)
    seeds: Seeds | None = field(init=False)
    local_inputs: bool = False
    constants: dict[str, Any] = field(factory=dict)
    local: frozenset[str] = frozenset()
    """Inputs that come as this rank's pieces in any case."""
    local_results: bool = False
    """Results are plain pieces, too."""
    _shaped: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._shaped = from_document(self.structure)
        self.collectives = Collectives(self.mesh)
        self.text = source(self.program)
        namespace: dict[str, Any] = {}
        exec(compile(self.text, "<plan>", "exec"), namespace)  # noqa: S102  the text is written by ``codegen`` from the plan
        self.forward, self.backward = namespace["forward"], namespace["backward"]
        random = any(s.op == "autoparallel.dropout" for s in self.program.steps)
        self.seeds = Seeds(agreed_seed(self.collectives)) if random else None

    def __call__(self, module: torch.nn.Module, named: Mapping[str, Any]) -> Any:
        """Run the planned forward for one call's arguments."""
        p = self.program
        tensors = _tensors(named)
        if set(tensors) != set(p.inputs):
            raise SpecError(
                f"the plan takes the inputs {', '.join(p.inputs) or 'none'}; this call gives {', '.join(tensors) or 'none'}"
            )
        inputs = [self._input(name, tensors[name]) for name in p.inputs]
        self._check_gradients(tensors)
        batch = self._batch(tensors)
        device = next((x.device for x in inputs), None)
        state = dict(_states(module, (*p.parameters, *p.buffers)))
        parameters = [self._parameter(n, v, state[n]) for n, v in p.parameters.items()]
        device = device if device is not None else parameters[0].device if parameters else torch.device("cpu")
        buffers = [_local(state[n]) for n in p.buffers]
        constants = [torch.tensor(self.constants[n], device=device) for n in p.constants]
        seed = self.seeds.next() if self.seeds is not None else 0
        results = _Planned.apply(self, batch, device, seed, *parameters, *buffers, *inputs, *constants)
        shaped, values = self._shaped
        out = [self._result(v["tensor"], results[v["tensor"]]) if "tensor" in v else v["value"] for v in values]
        return shaped.build(out)

    def _parameter(self, name: str, value: int, x: torch.Tensor) -> torch.Tensor:
        """The local piece. Raises SpecError when it is another one than the plan's, as where a part of the module was sharded."""
        local, planned = _local(x), self.program.values[value].shape
        if tuple(local.shape) != planned:
            raise SpecError(
                f"{name} has a piece of shape {tuple(local.shape)} here and {planned} in the plan; fully_shard takes a planned "
                "module as a whole, or modules that are planned one by one"
            )
        return local

    def _check_gradients(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raises SpecError when a gradient would silently be lost."""
        lost = next((n for n, x in tensors.items() if x.requires_grad and n not in self.program.input_gradients), None)
        if lost is not None and torch.is_grad_enabled() and any(t is not None for t in self.program.tangents):
            raise SpecError(
                f"input {lost} takes a gradient and the plan gives none: plan with requires_grad=True on it, or detach it"
            )

    def _input(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """The local piece of an input: of a whole tensor that every rank has, of a DTensor, or as it is."""
        info = self.program.values[self.program.inputs[name]]
        if isinstance(x, DTensor):
            return x.redistribute(self.mesh, placements(info.placements)).to_local()
        if self._is_local(name):
            return x
        for m, d in enumerate(info.placements):
            if d >= 0:
                if x.shape[d] % self.collectives.sizes[m]:
                    pieces = cuts(info.placements, self.collectives.sizes)[d]
                    raise SpecError(f"input {name} of shape {tuple(x.shape)} does not go in {pieces} pieces along dimension {d}")
                x = _Cut.apply(x, self.collectives, m, d)
        return x

    def _is_local(self, name: str) -> bool:
        return self.local_inputs or name in self.local

    def _batch(self, tensors: Mapping[str, torch.Tensor]) -> int:
        name = next((n for n, x in tensors.items() if x.ndim), None)
        if name is None:
            return 1
        size = int(tensors[name].shape[0])
        if self._is_local(name) and not isinstance(tensors[name], DTensor):
            size *= cuts(self.program.values[self.program.inputs[name]].placements, self.collectives.sizes).get(0, 1)
        if self.program.batch is None:
            planned = self.program.values[self.program.inputs[name]]
            whole = planned.shape[0] * cuts(planned.placements, self.collectives.sizes).get(0, 1)
            if size != whole:
                raise SpecError(f"the plan holds for batch size {whole} only, and {name} has {size}")
        return size

    def _result(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Replicated results as plain tensors, the others as DTensors."""
        planned = self.program.values[self.program.outputs[index]].placements
        if self.local_results or all(p == R for p in planned):
            return x
        return DTensor.from_local(x, self.mesh, placements(planned), run_check=False)


class _Cut(torch.autograd.Function):
    """This rank's piece of an input that every rank has whole; the pieces' gradients make the whole one again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, collectives: Collectives, m: int, dim: int) -> torch.Tensor:
        ctx.collectives, ctx.m, ctx.dim = collectives, m, dim
        return collectives.slice(x, m, R, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.collectives.all_gather(grad, ctx.m, ctx.dim, R), None, None, None


class _Planned(torch.autograd.Function):
    """Forward and backward of a program as one differentiable step."""

    @staticmethod
    def forward(ctx: Any, runner: Runner, batch: int, device: Any, seed: int, *given: torch.Tensor) -> Any:
        with torch.no_grad():
            found = runner.forward(runner.collectives, batch, device, seed, *given)
        n = len(runner.program.outputs)
        ctx.runner, ctx.batch, ctx.device, ctx.seed = runner, batch, device, seed
        outputs = tuple(x.view_as(x) if any(x is g for g in given) else x for x in found[:n])
        ctx.save_for_backward(*found[n:])
        ctx.mark_non_differentiable(*(x for x, t in zip(outputs, runner.program.tangents, strict=True) if t is None))
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        runner: Runner = ctx.runner
        p = runner.program
        tangents = [g for g, t in zip(grads, p.tangents, strict=True) if t is not None]
        found = iter(runner.backward(runner.collectives, ctx.batch, ctx.device, ctx.seed, *ctx.saved_tensors, *tangents))
        by_name = {n: next(found) for n, v in p.gradients.items() if v is not None}
        by_input = {n: next(found) for n in p.input_gradients}
        return (
            *([None] * 4), *(by_name.get(n) for n in p.parameters), *([None] * len(p.buffers)),
            *(by_input.get(n) for n in p.inputs), *([None] * len(p.constants)),
        )  # fmt: skip


def placements(codes: Placements) -> list[Placement]:
    """Integers as torch's placements."""
    return [Shard(c) if c >= 0 else Replicate() if c == R else Partial() if c == P else Partial("max") for c in codes]


def distribute(module: torch.nn.Module, program: Program, mesh: DeviceMesh) -> None:
    """Turn every planned parameter into a DTensor; each rank cuts its piece from the tensor it has."""
    shared: dict[int, torch.nn.Parameter] = {}
    wanted = {n: placements(program.values[v].placements) for n, v in program.parameters.items()}
    for name, p in list(module.named_parameters(remove_duplicate=False)):
        owner, _, last = name.rpartition(".")
        if id(p) not in shared:
            if isinstance(p, DTensor):
                moved: torch.Tensor = p.redistribute(mesh, wanted[name])
            else:
                moved = distribute_tensor(p.detach(), mesh, wanted[name], src_data_rank=None)
            shared[id(p)] = torch.nn.Parameter(moved, requires_grad=p.requires_grad)
        setattr(module.get_submodule(owner), last, shared[id(p)])


def install(module: torch.nn.Module, runner: Runner) -> torch.nn.Module:
    """Let the module's own ``forward`` run the program; hooks, state and names stay those of the module."""
    original = module.forward

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return runner(self, bind(original, args, kwargs))

    module.forward = types.MethodType(forward, module)
    module._autoparallel_runner = runner  # type: ignore[assignment]
    return module


def _tensors(named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among a call's arguments by path; without building structures where none are nested, for torch.compile."""
    if not any(isinstance(v, (tuple, list, Mapping)) or hasattr(v, "__dataclass_fields__") for v in named.values()):
        return {k: v for k, v in named.items() if isinstance(v, torch.Tensor)}
    leaves, structure = flatten(dict(named))
    return {path: x for path, x in zip(structure.paths(), leaves, strict=True) if isinstance(x, torch.Tensor)}


def _states(module: torch.nn.Module, names: Sequence[str]) -> Any:
    for name in names:
        owner, _, last = name.rpartition(".")
        yield name, getattr(module.get_submodule(owner), last)


def _local(x: torch.Tensor) -> torch.Tensor:
    return x.to_local() if isinstance(x, DTensor) else x
