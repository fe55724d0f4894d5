"""Replay a pipeline: this rank's stages as ``torch.distributed.pipelining`` stages, and the schedule that runs them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import define
from torch import nn

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.module_plan import ModulePlan
from autoparallel_pytorch import codec
from autoparallel_pytorch.apply import Runner, distribute
from autoparallel_pytorch.pipeline_cut import BOUNDARY
from autoparallel_pytorch.structure import flatten

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.pipelining import PipelineStage


@define(eq=False)
class Pipeline:
    """What one rank runs of a pipeline."""

    modules: list[nn.Module]
    """The modules of its stages: the planned module with the stage's parameters alone, under their own names."""
    stages: list[PipelineStage]
    schedule: Any
    """Of ``torch.distributed.pipelining``."""
    mesh: DeviceMesh
    inputs: frozenset[str]
    """That the stages here take."""

    def step(self, **inputs: Any) -> torch.Tensor | None:
        """Forward and backward of one step, all micro-batches; gradients are those of the mean loss.

        Args:
            inputs: those of the module, by name, on every rank: of the whole step.

        Returns:
            The mean loss on the ranks of the last stage, None on the others.
        """
        missing = self.inputs - set(inputs)
        if missing:
            raise SpecError(
                f"the stages of this rank take {', '.join(sorted(self.inputs))}; {', '.join(sorted(missing))} is missing"
            )
        losses: list[torch.Tensor] = []
        own = {n: inputs[n] for n in sorted(self.inputs)}
        # The module makes its own loss: the target of the schedule only counts micro-batches.
        target = torch.zeros(self.schedule._n_microbatches) if self._last else None
        self.schedule.step(target=target, losses=losses if self._last else None, return_outputs=False, **own)
        return torch.stack([x.detach() for x in losses]).mean() if self._last else None

    @property
    def _last(self) -> bool:
        return any(s.is_last for s in self.stages)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of the stages here, for an optimizer."""
        return (p for m in self.modules for p in m.parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Under the names that they have in the whole module."""
        return (x for m in self.modules for x in m.named_parameters())

    def state_dict(self) -> dict[str, Any]:
        """Of the stages here, for ``torch.distributed.checkpoint``: names and placements are those of the whole module."""
        return {k: v for m in self.modules for k, v in m.state_dict().items()}


class StageModule(nn.Module):
    """Runs the program of one stage on local pieces."""

    def __init__(self, part: nn.Module, runner: Runner, boundary: Sequence[str], *, last: bool) -> None:
        super().__init__()
        self.part, self._runner, self._boundary, self._last = part, runner, tuple(boundary), last

    def forward(self, *crossing: torch.Tensor, **inputs: Any) -> Any:
        named = dict(zip(self._boundary, crossing, strict=True))
        named |= {n: inputs[n] for n in self._runner.program.inputs if n not in named}
        result = self._runner(self.part, named)
        if not self._last:
            return result
        leaves, _ = flatten(result)
        losses = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad and not x.ndim]
        return sum(losses[1:], losses[0])


def replay_pipeline(module: nn.Module, plan: ModulePlan, mesh: DeviceMesh, *, local_inputs: bool) -> Pipeline:
    """This rank's part of a planned pipeline; its parameters are cut from the module's."""
    from torch.distributed.pipelining import PipelineStage

    pipe = plan.document["pipeline"]
    names = tuple(plan.document["mesh"]["names"])
    inner, group = mesh[names[1:]], mesh.get_group(names[0])
    rank, ranks, stages = mesh.get_local_rank(names[0]), pipe["ranks"], pipe["stages"]
    device = torch.device("cpu") if mesh.device_type == "cpu" else torch.device(mesh.device_type, torch.cuda.current_device())
    modules, own, inputs = [], [], set()
    for i in range(rank, len(stages), ranks):
        stage = stages[i]
        program = codec.load(stage["plan"]["program"], len(names) - 1)
        part = _part(module, {*program.parameters, *program.buffers}, "")
        distribute(part, program, inner)
        boundary = [x["name"] for x in stage["enters"]]
        runner = Runner(
            program, inner, stage["plan"]["structure"], local_inputs=local_inputs, constants=stage["plan"]["constants"],
            local=frozenset(boundary), local_results=i < len(stages) - 1,
        )  # fmt: skip
        made = StageModule(part, runner, boundary, last=i == len(stages) - 1)
        modules.append(part)
        inputs |= {n for n in program.inputs if not n.startswith(BOUNDARY)}
        enters, gives = _metas(stage["enters"]), _metas(stage["gives"])
        own.append(PipelineStage(made, i, len(stages), device, input_args=enters, output_args=gives, group=group))
    return Pipeline(modules, own, _schedule(pipe, own, inputs), mesh, frozenset(inputs))


def _schedule(pipe: Mapping[str, Any], stages: list[Any], inputs: set[str]) -> Any:
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
    from torch.distributed.pipelining.microbatch import TensorChunkSpec

    common = {
        "n_microbatches": pipe["micro_batches"],
        "loss_fn": _given_loss,
        "kwargs_chunk_spec": dict.fromkeys(sorted(inputs), TensorChunkSpec(0)) if inputs else None,
    }
    if pipe["schedule"] == "interleaved":
        return ScheduleInterleaved1F1B(stages, **common)
    kind = ScheduleGPipe if pipe["schedule"] == "gpipe" else Schedule1F1B
    return kind(stages[0], **common)


def _given_loss(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    """The last stage gives the loss itself."""
    return output


def _metas(tensors: Sequence[Mapping[str, Any]]) -> tuple[torch.Tensor, ...]:
    """Shapes and types of one micro-batch's pieces, as examples for the stage."""
    made = [torch.empty(x["local_shape"], dtype=getattr(torch, x["dtype"]), device="meta") for x in tensors]
    return tuple(x.requires_grad_(x.is_floating_point()) for x in made)


def _part(module: nn.Module, names: set[str], prefix: str) -> nn.Module:
    """The module with some of its parameters and buffers, which it shares; submodules that hold none are left out."""
    part = copy.copy(module)
    part._parameters = {k: v for k, v in module._parameters.items() if f"{prefix}{k}" in names}
    part._buffers = {k: v for k, v in module._buffers.items() if f"{prefix}{k}" in names}
    children = {k: m for k, m in module._modules.items() if m is not None and any(n.startswith(f"{prefix}{k}.") for n in names)}
    part._modules = {k: _part(m, names, f"{prefix}{k}.") for k, m in children.items()}
    return part
