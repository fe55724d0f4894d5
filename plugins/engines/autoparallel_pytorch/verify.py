"""Replay a plan on the CPU and compare with the unsharded module: results, gradients, and the number of collectives.

A large module is replaced by a reduced copy, and every mesh dimension by one of two ranks: placements do not depend on
sizes. One process plays all ranks (``LocalTensorMode``), or real processes talk over gloo.
"""

from __future__ import annotations

import copy
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define

from autoparallel_core.cluster import build_cluster
from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.spec.module_plan import ModulePlan, ModuleRequest
from autoparallel_pytorch.emit import check_shapes, emit
from autoparallel_pytorch.graph import Dtype
from autoparallel_pytorch.pipeline_document import side_by_side
from autoparallel_pytorch.planner import Planning
from autoparallel_pytorch.program import Program
from autoparallel_pytorch.ranks import Payload, gathered_inputs, input_gradients, run_local, run_processes
from autoparallel_pytorch.reduce_module import reduced
from autoparallel_pytorch.structure import flatten
from autoparallel_pytorch.trace import bind, call, trace
from autoparallel_pytorch.transfer import choices, recomputed

BATCH_PER_RANK = 2
SEQUENCE = 16
TOLERANCE = 1e-5
_HALF = ("bfloat16", "float16")


@define
class Verified:
    """Relative errors and counts."""

    output_error: float
    gradient_error: float
    worst_gradient: str
    predicted: dict[str, int]
    counted: dict[str, int]

    @property
    def passed(self) -> bool:
        return max(self.output_error, self.gradient_error) <= TOLERANCE and self.predicted == self.counted


def verify(plan: ModulePlan, options: Mapping[str, Any]) -> dict[str, Any]:
    """Figures by name.

    Options:
        module: the module, or a reduced one; ``inputs``: its arguments (a mapping or a sequence).
        rules, flops: of operators, by name; see ``autoparallel_core.spec.module_plan.OperatorRule``.
        reduce: False takes the module as it is, on the plan's own mesh.
        processes: a number of gloo processes instead of one process.
        seed: of the weights' and inputs' random numbers.

    Raises:
        SpecError: no module is given, or the reduced copy cannot take the plan's placements.
    """
    module, inputs = options.get("module"), options.get("inputs")
    if module is None or inputs is None:
        raise SpecError("verifying a plan needs its module and inputs (--module and --inputs)")
    cut = "pipeline" in plan.document
    if cut:
        plan = side_by_side(plan)
    torch.manual_seed(int(options.get("seed", 0)))
    processes = options.get("processes")
    small = reduced(module) if options.get("reduce", True) else copy.deepcopy(module)
    random = any(s["op"] == "autoparallel.dropout" for s in plan.document["program"]["steps"])
    if random:
        small.eval()  # no two programs draw the same numbers
    sizes = tuple(plan.document["mesh"]["sizes"])
    sizes = _mesh(sizes, processes) if options.get("reduce", True) else sizes
    named = bind(small.forward, *_arguments(inputs))
    named = _small_inputs(named, small, sizes) if options.get("reduce", True) else named
    program, structure, constants = _program(plan, small, named, sizes, options)
    payload = Payload(program, structure, constants, tuple(plan.document["mesh"]["names"]), sizes, small, named)
    expected, gradients = _unsharded(small, named)
    if processes is None:
        got = run_local(payload)
    else:
        with tempfile.TemporaryDirectory() as folder:
            got = run_processes(payload, Path(folder))
    predicted = Counter(s.op.removeprefix("move.") for s in program.steps if s.collective)
    predicted += Counter(all_gather=gathered_inputs(program))
    errors = {n: _error(got.gradients[n], g) for n, g in gradients.items()}
    worst = max(errors, key=lambda n: errors[n], default="")
    out = max((_error(a, b) for a, b in zip(got.outputs, expected, strict=True)), default=0.0)
    found = Verified(out, errors.get(worst, 0.0), worst, dict(sorted(predicted.items())), dict(sorted(got.counted.items())))
    return {
        "passed": found.passed,
        "output_error": found.output_error,
        "gradient_error": found.gradient_error,
        "worst_gradient": worst,
        "collectives_predicted": found.predicted,
        "collectives_counted": found.counted,
        "mesh": list(sizes),
        "parameters": sum(p.numel() for p in small.parameters()),
        "how": ("one process" if processes is None else f"{processes} processes over gloo")
        + (", dropout off" if random else "")
        + (", the stages' placements as one program on the inner mesh" if cut else ""),
        "tolerance": TOLERANCE,
    }


def _mesh(sizes: Sequence[int], processes: int | None) -> tuple[int, ...]:
    """Two ranks per dimension; with more processes than that, the first dimension takes the rest."""
    out = [min(s, 2) for s in sizes]
    ranks = 1
    for s in out:
        ranks *= s
    if processes is None or processes == ranks:
        return tuple(out)
    if processes % (ranks // out[0]) or processes < ranks:
        raise SpecError(f"{processes} processes do not make a mesh of {len(sizes)} dimensions of two; use {ranks}")
    out[0] = processes // (ranks // out[0])
    return tuple(out)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _small_inputs(named: Mapping[str, Any], module: torch.nn.Module, sizes: Sequence[int]) -> dict[str, Any]:
    """Real tensors of a small batch: random numbers, and token numbers below the vocabulary."""
    ranks = 1
    for s in sizes:
        ranks *= s
    config = getattr(module, "config", None)
    vocabulary = int(getattr(config, "vocab_size", 0) or min((p.shape[0] for p in module.parameters() if p.ndim == 2), default=2))
    leaves, structure = flatten(dict(named))
    batches = {x.shape[0] for x in leaves if isinstance(x, torch.Tensor) and x.ndim}
    lengths = {x.shape[1] for x in leaves if isinstance(x, torch.Tensor) and x.ndim > 1 and not x.is_floating_point()}
    batch, length = (next(iter(s)) if len(s) == 1 else None for s in (batches, lengths))

    def small(x: torch.Tensor) -> torch.Tensor:
        shape = list(x.shape)
        if batch is not None and shape:
            shape[0] = BATCH_PER_RANK * ranks
        shape = [s if i == 0 or s != length or config is None else SEQUENCE for i, s in enumerate(shape)]
        if x.is_floating_point():
            dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
            return torch.randn(shape, dtype=dtype).requires_grad_(x.requires_grad)
        return torch.randint(0, 2 if x.dtype == torch.bool else vocabulary, shape).to(x.dtype)

    return dict(structure.build([small(x) if isinstance(x, torch.Tensor) else x for x in leaves]))


def _program(
    plan: ModulePlan, module: torch.nn.Module, named: Mapping[str, Any], sizes: tuple[int, ...], options: Mapping[str, Any]
) -> tuple[Program, Any, dict[str, Any]]:
    document = plan.document
    # Traced in the planned dtype, so that casts have their places; run in 32 bit or more, so that errors are the plan's.
    dtypes = Counter(p["dtype"] for p in document["parameters"].values())
    half = next((d for d, _ in dtypes.most_common(1) if d in _HALF), None)
    if half is not None:
        module = copy.deepcopy(module).to(getattr(torch, half))
    graph = trace(module, (), named) if not any(k.startswith("*") for k in named) else trace(module, *_split(module, named))
    gpu = host().gpu(document["cluster"]["gpu"])
    n = 1
    for s in sizes:
        n *= s
    cluster = build_cluster(gpu, n, gpus_per_node=n)
    rules = {k: options[k] for k in ("rules", "flops") if k in options}
    request = ModuleRequest(cluster=cluster, mesh_names=tuple(document["mesh"]["names"]), mesh_sizes=sizes, options=rules)
    planning = Planning.of(graph, request)
    planning.form = planning.formulate()
    chosen = choices(document, graph, planning.form)
    program = emit(
        graph, planning.classes, planning.form, chosen, planning.prices, planning.transitions, recomputed(document, graph)
    )
    check_shapes(program)
    for step in program.steps:
        step.args, step.kwargs = _precise(step.args), {k: _precise(v) for k, v in step.kwargs.items()}
    return program, graph.structure, graph.constants


def _precise(value: Any) -> Any:
    """16-bit dtypes among the arguments become 32-bit ones."""
    if isinstance(value, Dtype):
        return Dtype("float32") if value.name in _HALF else value
    if type(value) is tuple:
        return tuple(_precise(v) for v in value)
    return value


def _split(module: torch.nn.Module, named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    extra = [named[k] for k in sorted((k for k in named if k.startswith("*")), key=lambda k: int(k[1:]))]
    del module
    return (*[v for k, v in named.items() if not k.startswith("*")], *extra), {}


def _unsharded(module: torch.nn.Module, named: Mapping[str, Any]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    single = copy.deepcopy(module)
    given, structure = flatten(dict(named))
    given = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in given]
    fresh = structure.build(given)
    leaves, _ = flatten(call(single, fresh))
    outputs = [x for x in leaves if isinstance(x, torch.Tensor)]
    loss_of(outputs).backward()
    gradients = {n: p.grad for n, p in single.named_parameters() if p.grad is not None}
    return [x.detach() for x in outputs], gradients | input_gradients(fresh)


def loss_of(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The scalar that the module returns, or the sum of squares of what it returns."""
    scalars = [x for x in outputs if x.requires_grad and not x.ndim]
    if scalars:
        return sum(scalars[1:], scalars[0])
    flowing = [x for x in outputs if x.requires_grad]
    if not flowing:
        raise SpecError("nothing that the module returns depends on its parameters")
    squares = [(x * x).sum() for x in flowing]
    return sum(squares[1:], squares[0])


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative, in the Euclidean norm."""
    a, b = a.detach().double(), b.detach().double()
    scale = float(b.norm())
    return float((a - b).norm()) / scale if scale else float(a.norm())
