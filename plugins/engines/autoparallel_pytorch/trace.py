"""Record the forward and backward operators of a module on meta tensors: nothing is computed, nothing allocated.

Every operator that reaches the dispatcher below autograd is one node; the backward is recorded by running autograd on
the same meta tensors. In-place operators become their functional forms, views become five kinds (see ``views``), aliases
disappear, and what has a better form for planning is replaced while recording (see ``decompose``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.graph import BACKWARD, Dtype, Graph, Node, Ref, Size, map_refs
from autoparallel_pytorch.structure import flatten

if TYPE_CHECKING:
    import torch


def trace(module: torch.nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Graph:
    """The joint graph of ``module(*args, **kwargs)``.

    Tensors may be on any device, also ``meta``: only shapes and dtypes matter. When the result holds a scalar that
    depends on parameters it is the loss, and gradients flow from such scalars alone; else from every floating output.
    Sizes that follow the first dimension of all inputs are kept as functions of it (:class:`~.graph.Size`).

    Raises:
        SpecError: the forward fails on meta tensors, reads values of tensors, or uses what cannot be recorded.
    """
    named = bind(module.forward, args, kwargs or {})
    graph = _record(module, named, batch=None)
    batch = _batch(named)
    if batch is None:
        return graph
    try:
        return _sized_graph(module, named, graph, batch)
    except SpecError as e:
        graph = _record(module, named, batch=None)
        graph.notes.append(f"the plan holds for batch size {batch} only: {e}")
        return graph


def _sized_graph(module: torch.nn.Module, named: Mapping[str, Any], graph: Graph, batch: int) -> Graph:
    """The graph with sizes as functions of the batch. Raises SpecError when they are no linear ones."""
    if graph.regions:
        raise SpecError(f"{next(iter(graph.regions.values())).name} is recorded for the shapes that it was called with")
    other = batch + 1 if batch == 1 else 2 * batch
    sized = _with_sizes(graph, _record(module, named, batch=other), batch, other)
    if any(s.fixed for n in sized.nodes for s in _sizes((n.args, tuple(n.kwargs.values())))):
        # Two points make any curve a line: a third tells.
        _check_sizes(sized, _record(module, named, batch=3 * batch), 3 * batch)
    return sized


def bind(forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call by name, as a module's ``forward`` names them. Raises SpecError when they do not fit."""
    try:
        bound = inspect.signature(forward).bind(*args, **kwargs)
    except TypeError as e:
        raise SpecError(f"the inputs do not fit {getattr(forward, '__qualname__', forward)}: {e}") from None
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found |= {f"*{i}": v for i, v in enumerate(value)}
        else:
            found[name] = value
    return found


def call(module: torch.nn.Module, named: Mapping[str, Any]) -> Any:
    """Call the module with arguments from :func:`bind`."""
    extra = sorted((k for k in named if k.startswith("*")), key=lambda k: int(k[1:]))
    if not extra:
        parameters = inspect.signature(module.forward).parameters
        first = [k for k in named if k in parameters and parameters[k].kind is inspect.Parameter.POSITIONAL_ONLY]
        return module(*(named[k] for k in first), **{k: v for k, v in named.items() if k not in first})
    parameters = inspect.signature(module.forward).parameters
    positional = [k for k in parameters if k in named and parameters[k].kind is not inspect.Parameter.KEYWORD_ONLY]
    rest = {k: v for k, v in named.items() if k not in positional and k not in extra}
    return module(*(named[k] for k in positional), *(named[k] for k in extra), **rest)


def _batch(named: Mapping[str, Any]) -> int | None:
    import torch

    leaves, _ = flatten(dict(named))
    sizes = {x.shape[0] for x in leaves if isinstance(x, torch.Tensor) and x.ndim}
    return next(iter(sizes)) if len(sizes) == 1 else None


def _record(module: torch.nn.Module, named: Mapping[str, Any], *, batch: int | None) -> Graph:
    import torch

    from autoparallel_pytorch.intercept import intercepts
    from autoparallel_pytorch.known_modules import no_checkpoints, one_operator
    from autoparallel_pytorch.local_regions import local_maps
    from autoparallel_pytorch.recorder import Recorder

    recorder = Recorder()
    states: dict[str, torch.Tensor] = {}
    parameters: dict[str, int] = {}
    buffers: dict[str, int] = {}
    for name, p in module.named_parameters():
        states[name] = torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device="meta").requires_grad_(p.requires_grad)
        parameters[name] = recorder.placeholder("parameter", name, states[name])
    for name, b in module.named_buffers():
        states[name] = torch.empty(b.shape, dtype=b.dtype, device="meta")
        buffers[name] = recorder.placeholder("buffer", name, states[name], value=b)
    leaves, structure = flatten(dict(named))
    inputs: dict[str, int] = {}
    given: dict[str, torch.Tensor] = {}
    paths = structure.paths()
    for i, x in enumerate(leaves):
        if isinstance(x, torch.Tensor):
            shape = x.shape if batch is None or not x.ndim else (batch, *x.shape[1:])
            meta = torch.empty(shape, dtype=x.dtype, device="meta").requires_grad_(x.requires_grad)
            given[paths[i]] = meta
            inputs[paths[i]] = recorder.placeholder("input", paths[i], meta, value=x if batch is None else None)
            leaves[i] = meta
    outputs: list[torch.Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(recorder.watching(module))
        stack.enter_context(one_operator(module))
        stack.enter_context(no_checkpoints(recorder.notes))
        stack.enter_context(recorder)
        stack.enter_context(intercepts(recorder))
        stack.enter_context(local_maps(recorder))
        result = _forward(module, states, structure.build(leaves))
        found, result_structure = flatten(result)
        refs: list[Ref] = []
        for i, x in enumerate(found):
            if isinstance(x, torch.Tensor):
                outputs.append(x)
                refs.append(recorder.ref(x))
                found[i] = _Slot(len(outputs) - 1)
            elif x is not None and not isinstance(x, (bool, int, float, str)):
                recorder.notes.append(f"output {result_structure.paths()[i]} of type {type(x).__name__} comes back as None")
                found[i] = None
        wanted = {f"parameter {n}": states[n] for n in parameters} | {f"input {n}": x for n, x in given.items()}
        tangents, found_gradients = _backward(recorder, outputs, {n: x for n, x in wanted.items() if x.requires_grad})
        gradients = {n.removeprefix("parameter "): g for n, g in found_gradients.items() if n.startswith("parameter ")}
        flowing = {n.removeprefix("input "): g for n, g in found_gradients.items() if n.startswith("input ") and g is not None}
    graph = Graph(
        nodes=recorder.nodes,
        outputs=refs,
        tangents=tangents,
        gradients=gradients,
        input_gradients=flowing,
        structure=result_structure.document([x.index if isinstance(x, _Slot) else x for x in found], _Slot.mark(found)),
        inputs=inputs,
        parameters=parameters,
        buffers=buffers,
        notes=recorder.notes,
        constants=recorder.constants,
        regions=recorder.regions,
    )
    return prune(graph)


class _Slot:
    """An output tensor's place in the result."""

    def __init__(self, index: int) -> None:
        self.index = index

    @staticmethod
    def mark(found: Sequence[Any]) -> list[bool]:
        return [isinstance(x, _Slot) for x in found]


def _forward(module: torch.nn.Module, states: Mapping[str, torch.Tensor], named: Mapping[str, Any]) -> Any:
    import torch

    class _Caller(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self) -> Any:
            return call(self.inner, named)

    try:
        return torch.func.functional_call(_Caller(), {f"inner.{k}": v for k, v in states.items()}, (), tie_weights=True)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as e:
        first = " ".join(str(e).split())[:300]
        raise SpecError(f"the forward of {type(module).__name__} cannot be traced on meta tensors: {first}") from e


def _backward(
    recorder: Any,
    outputs: Sequence[torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
) -> tuple[list[int | None], dict[str, Ref | None]]:
    import torch

    flows = [x.requires_grad and x.is_floating_point() for x in outputs]
    if any(f and x.numel() == 1 and not x.ndim for f, x in zip(flows, outputs, strict=True)):
        flows = [f and not x.ndim for f, x in zip(flows, outputs, strict=True)]
    tangents: list[int | None] = [None] * len(outputs)
    if not any(flows) or not wanted:
        return tangents, {}
    recorder.phase = BACKWARD
    given = []
    for i, (flow, x) in enumerate(zip(flows, outputs, strict=True)):
        if flow:
            t = torch.empty(x.shape, dtype=x.dtype, device="meta")
            tangents[i] = recorder.placeholder("tangent", f"tangent {i}", t)
            given.append(t)
    sources = [x for f, x in zip(flows, outputs, strict=True) if f]
    try:
        grads = torch.autograd.grad(sources, list(wanted.values()), given, allow_unused=True)
    except (RuntimeError, NotImplementedError) as e:
        raise SpecError(f"the backward cannot be traced: {' '.join(str(e).split())[:300]}") from e
    return tangents, {n: None if g is None else recorder.ref(g) for n, g in zip(wanted, grads, strict=True)}


def prune(graph: Graph) -> Graph:
    """Without the operators that nothing needs; placeholders stay. Node numbers follow the execution order."""
    needed = {r.node for r in (*graph.outputs, *graph.gradients.values(), *graph.input_gradients.values()) if r is not None}
    for node in reversed(graph.nodes):
        if node.id in needed:
            needed.update(r.node for r in node.refs())
    kept = [n for n in graph.nodes if n.id in needed or n.op in ("parameter", "buffer", "input", "tangent")]
    number = {n.id: i for i, n in enumerate(kept)}

    def moved(r: Ref) -> Ref:
        return Ref(number[r.node], r.out)

    for node in kept:
        node.args = map_refs(node.args, moved)
        node.kwargs = {k: map_refs(v, moved) for k, v in node.kwargs.items()}
        node.id = number[node.id]
    graph.nodes = kept
    graph.outputs = [moved(r) for r in graph.outputs]
    graph.gradients = {k: None if r is None else moved(r) for k, r in graph.gradients.items()}
    graph.input_gradients = {k: moved(r) for k, r in graph.input_gradients.items()}
    graph.tangents = [None if t is None else number[t] for t in graph.tangents]
    for table in (graph.inputs, graph.parameters, graph.buffers):
        for k, v in table.items():
            table[k] = number[v]
    _name(graph.nodes)
    return graph


def _name(nodes: Sequence[Node]) -> None:
    """``module/operator``, numbered within it, with ``bwd/`` before the operators of the backward."""
    seen: dict[str, int] = {}
    for node in nodes:
        if node.placeholder:
            continue
        short = node.op.split(".")[1]
        base = f"{node.module}/{'bwd/' if node.phase == BACKWARD else ''}{short}"
        count = seen.get(base, 0)
        seen[base] = count + 1
        node.name = base if not count else f"{base}.{count}"


def _with_sizes(graph: Graph, second: Graph, batch: int, other: int) -> Graph:
    """Arguments that differ between two batch sizes, as functions of the batch. Raises SpecError when something else differs."""
    if [n.op for n in graph.nodes] != [n.op for n in second.nodes]:
        raise SpecError("the operators change with the batch size")
    for a, b in zip(graph.nodes, second.nodes, strict=True):
        if a.placeholder:
            continue
        where = a.name
        a.args = _sized(a.args, b.args, batch, other, where)
        a.kwargs = {k: _sized(v, b.kwargs.get(k), batch, other, where) for k, v in a.kwargs.items()}
    graph.batch = batch
    return graph


def _sizes(value: Any) -> Iterator[Size]:
    if isinstance(value, Size):
        yield value
    elif isinstance(value, tuple) and not isinstance(value, (Ref, Dtype)):
        for v in value:
            yield from _sizes(v)


def _check_sizes(graph: Graph, other: Graph, batch: int) -> None:
    """Raises SpecError when an argument at another batch size is not what its :class:`Size` says."""
    for a, b in zip(graph.nodes, other.nodes, strict=True):
        if not a.placeholder and _at((a.args, tuple(a.kwargs.values())), batch) != (b.args, tuple(b.kwargs.values())):
            raise SpecError(f"{a.name} has an argument that is no linear function of the batch size")


def _at(value: Any, batch: int) -> Any:
    if isinstance(value, Size):
        return value.at(batch)
    if isinstance(value, tuple) and not isinstance(value, (Ref, Dtype)):
        return tuple(_at(v, batch) for v in value)
    return value


def _sized(a: Any, b: Any, batch: int, other: int, where: str) -> Any:
    if isinstance(a, (Ref, Dtype)) or a is None or isinstance(a, (bool, str)):
        if a != b:
            raise SpecError(f"{where} changes with the batch size")
        return a
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            raise SpecError(f"{where} changes with the batch size")
        return tuple(_sized(x, y, batch, other, where) for x, y in zip(a, b, strict=True))
    if a == b:
        return a
    slope, rest = divmod(b - a, other - batch) if isinstance(a, int) and isinstance(b, int) else (0, 1)
    if rest:
        raise SpecError(f"{where} has the argument {a} at batch size {batch} and {b} at {other}")
    return Size(a - slope * batch, slope)
