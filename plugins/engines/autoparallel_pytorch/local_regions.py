"""Regions that the user controls: functions under ``torch.distributed.tensor.experimental.local_map``.

The planner takes a region's placements as they are and decides what surrounds it. Its body is recorded for the pieces that
one rank holds, forward and backward, and written into the program with its own collectives, so that a plan needs neither the
function nor its closure. Placements name the dimensions of the plan's mesh in order; those of a region with a ``device_mesh``
name its dimensions, and the region is replicated over others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from attrs import define, field
from torch.distributed import _functional_collectives as funcol
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import _func_map

from autoparallel_core.errors import Infeasible, SpecError
from autoparallel_pytorch.graph import BACKWARD, Graph, Meta, Node
from autoparallel_pytorch.machine import Mesh
from autoparallel_pytorch.placement import P, Placements, R, cuts, fits, local_shape, text
from autoparallel_pytorch.structure import flatten

if TYPE_CHECKING:
    from autoparallel_pytorch.recorder import Recorder

FORWARD_OP, BACKWARD_OP = "autoparallel.region", "autoparallel.region_backward"
REGIONS = frozenset({FORWARD_OP, BACKWARD_OP})
MOVES = {
    "_c10d_functional.all_gather_into_tensor.default": "all_gather",
    "_c10d_functional.all_reduce.default": "all_reduce",
    "_c10d_functional.reduce_scatter_tensor.default": "reduce_scatter",
    "_c10d_functional.all_to_all_single.default": "all_to_all",
}
_REDUCE = {"sum": -2, "max": -3, "min": -4}


class OtherMesh(SpecError, Infeasible):
    """A region is for another mesh: wrong where the mesh is given, no plan where its shape is searched."""


@define(eq=False)
class Region:
    """One call of a region."""

    name: str
    function: Callable[..., Any]
    """(tensors) → tensors."""
    ins: tuple[tuple[int, ...], ...]
    """Placement codes of each tensor input over ``dims``."""
    grads: tuple[tuple[int, ...], ...]
    """Those of their gradients."""
    outs: tuple[tuple[int, ...], ...]
    dims: tuple[str, ...] | None
    """Names of the mesh dimensions; None: those of the plan's mesh, in order."""
    sizes: tuple[int, ...] | None
    groups: dict[str, str]
    """Process group → the mesh dimension that it spans."""
    wants: tuple[bool, ...]
    """Whether each input takes a gradient."""
    identity: Any = None
    """Equal for calls that do the same: repeated layers are planned as one."""
    _bodies: dict[Any, Body] = field(factory=dict)

    def placed(self, mesh: Mesh, *, backward: bool) -> tuple[tuple[Placements, ...], tuple[Placements, ...]]:
        """Placements of (outputs, inputs) of the operator on a mesh. Raises OtherMesh when the region is for another one."""
        order = [*range(len(mesh.names))] if self.dims is None else [self._at(mesh, d) for d in self.dims]
        n = len(self.ins[0]) if self.ins else len(self.outs[0])
        if n != len(order):
            raise OtherMesh(f"{self.name} gives placements for {n} mesh dimensions; mesh {mesh} has {len(order)}")
        if self.sizes is not None and tuple(mesh.sizes[m] for m in order) != self.sizes:
            raise OtherMesh(f"{self.name} is for a mesh of {' × '.join(map(str, self.sizes))}; mesh {mesh} is another")

        def on(codes: Sequence[int]) -> Placements:
            found = [R] * len(mesh.names)
            for m, code in zip(order, codes, strict=True):
                found[m] = code
            return tuple(found)

        ins = tuple(map(on, self.ins))
        if not backward:
            return tuple(map(on, self.outs)), ins
        grads = tuple(on(g) for g, w in zip(self.grads, self.wants, strict=True) if w)
        return grads, (*ins, *(on([R if c < 0 else c for c in o]) for o in self.outs))

    def _at(self, mesh: Mesh, dim: str) -> int:
        if dim not in mesh.names:
            raise OtherMesh(f"{self.name} is for the mesh dimension {dim}; mesh {mesh} has none of that name")
        return mesh.names.index(dim)

    def body(self, mesh: Mesh, metas: Sequence[Meta]) -> Body:
        """The graph of what one rank does, from the whole tensors' shapes. Raises OtherMesh when they do not divide."""
        key = (mesh, tuple(metas))
        found = self._bodies.get(key)
        if found is None:
            _, ins = self.placed(mesh, backward=False)
            for p, meta in zip(ins, metas, strict=True):
                if not fits(p, mesh.sizes, meta.shape):
                    raise OtherMesh(
                        f"{self.name} takes {text(p)} of a tensor of shape {meta.shape}: mesh {mesh} does not divide it"
                    )
            local = [Meta(local_shape(p, mesh.sizes, m.shape), m.dtype) for p, m in zip(ins, metas, strict=True)]
            found = self._bodies[key] = Body.of(self, local, mesh)
        return found


@define(eq=False)
class Body:
    """What a rank does: a graph of local shapes whose inputs and gradients are numbered."""

    graph: Graph
    dims: dict[str, int]
    """Process group → mesh dimension."""

    @classmethod
    def of(cls, region: Region, metas: Sequence[Meta], mesh: Mesh) -> Body:
        dims = {g: mesh.names.index(d) for g, d in region.groups.items() if d in mesh.names}
        return cls(_record(region, metas, {g: mesh.sizes[m] for g, m in dims.items()}), dims)

    def move(self, node: Node) -> tuple[str, int, int, int] | None:
        """(kind, mesh dimension, source, target) of a collective; None for other operators."""
        kind = MOVES.get(node.op)
        if kind is None:
            return None
        m = self.dims.get(node.args[-1])
        if m is None:
            raise SpecError(
                f"a region reduces over a group that is none of its device_mesh: give local_map the device_mesh of {node.op}"
            )
        if kind == "all_gather":
            return kind, m, 0, R
        if kind == "all_to_all":
            return kind, m, 0, 0
        if node.args[1] not in _REDUCE:
            raise SpecError(f"a region reduces with {node.args[1]}; plans know sum, max and min")
        return kind, m, _REDUCE[node.args[1]], 0 if kind == "reduce_scatter" else R


def whole_shapes(region: Region, metas: Sequence[Meta]) -> tuple[Meta, ...]:
    """Shapes of the whole results: the body on one rank's pieces, or, of an unknown mesh, on whole tensors."""
    sizes = region.sizes or (1,) * len(region.outs[0])
    local = [Meta(local_shape(p, sizes, m.shape), m.dtype) for p, m in zip(region.ins, metas, strict=True)]
    names = region.dims or tuple(f"d{i}" for i in range(len(sizes)))
    graph = _record(region, local, {g: sizes[names.index(d)] for g, d in region.groups.items()})
    steps = tuple((n.op, n.args, tuple(n.kwargs.items()), n.outs) for n in graph.nodes)
    region.identity = (region.ins, region.grads, region.outs, region.dims, region.sizes, steps)
    if len(graph.outputs) != len(region.outs):
        raise SpecError(f"{region.name} gives {len(graph.outputs)} tensors and placements for {len(region.outs)}")
    out = []
    for ref, p in zip(graph.outputs, region.outs, strict=True):
        meta, cut = graph.meta(ref), cuts(p, sizes)
        out.append(Meta(tuple(s * cut.get(d, 1) for d, s in enumerate(meta.shape)), meta.dtype))
    return tuple(out)


def _record(region: Region, metas: Sequence[Meta], group_sizes: Mapping[str, int]) -> Graph:
    from autoparallel_pytorch.intercept import intercepts
    from autoparallel_pytorch.recorder import Recorder
    from autoparallel_pytorch.trace import prune

    recorder = Recorder()
    recorder.group_sizes = dict(group_sizes)
    given = []
    for i, (meta, want) in enumerate(zip(metas, region.wants, strict=True)):
        x = torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device="meta").requires_grad_(want)
        recorder.placeholder("input", str(i), x)
        given.append(x)
    with patch.object(funcol, "_are_we_tracing", return_value=True), recorder, intercepts(recorder), torch.enable_grad():
        try:
            leaves, _ = flatten(region.function(*given))
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as e:
            raise SpecError(f"{region.name} cannot be traced: {' '.join(str(e).split())[:300]}") from e
        results = [x for x in leaves if isinstance(x, torch.Tensor)]
        refs = [recorder.ref(x) for x in results]
        recorder.phase = BACKWARD
        tangents: list[int | None] = [None] * len(results)
        sources, starts = [], []
        for i, x in enumerate(results):
            t = torch.empty(x.shape, dtype=x.dtype, device="meta")
            tangents[i] = recorder.placeholder("tangent", f"tangent {i}", t)
            if x.requires_grad:
                sources.append(x)
                starts.append(t)
        wanted = [x for x, w in zip(given, region.wants, strict=True) if w]
        grads = torch.autograd.grad(sources, wanted, starts, allow_unused=True) if sources and wanted else (None,) * len(wanted)
        made = [None if g is None else recorder.ref(g) for g in grads]
    number = iter(made)
    gradients = {str(i): next(number) for i, w in enumerate(region.wants) if w}
    inputs = {n.name: n.id for n in recorder.nodes if n.op == "input"}
    graph = Graph(recorder.nodes, refs, tangents, gradients, None, inputs, {}, {}, recorder.notes, recorder.constants)
    if recorder.constants:
        raise SpecError(f"{region.name} uses tensors from outside: pass them as arguments")
    return prune(graph)


# --- while a module is traced -----------------------------------------------------------------------------------------


@contextmanager
def local_maps(recorder: Recorder) -> Iterator[None]:
    """While active, ``local_map`` writes regions. Calls that were wrapped before reach the same function, hence its code."""
    target = _func_map._local_map_wrapped
    code = target.__code__
    target.__autoparallel_recorder__ = recorder  # type: ignore[attr-defined]
    target.__code__ = _redirect.__code__
    try:
        yield
    finally:
        target.__code__ = code
        del target.__autoparallel_recorder__  # type: ignore[attr-defined]


def _redirect(
    func: Any, out_placements: Any, in_placements: Any, in_grad_placements: Any, device_mesh: Any, redistribute_inputs: Any,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    # Runs as the code of torch's function, whose globals these are not.
    del redistribute_inputs  # the planner does, in any case
    from autoparallel_pytorch.local_regions import record

    return record(func, out_placements, in_placements, in_grad_placements, device_mesh, args, kwargs)


def record(func: Any, out: Any, ins: Any, in_grads: Any, mesh: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """One node for a call. Raises SpecError when its placements are missing or wrong."""
    recorder: Recorder = _func_map._local_map_wrapped.__autoparallel_recorder__  # type: ignore[attr-defined]
    name = f"region {getattr(func, '__name__', 'local_map')} of {recorder.where}"
    if ins is None or out is None:
        raise SpecError(f"{name}: a plan needs in_placements and out_placements")
    leaves, structure = flatten(list(args))
    if len(ins) != len(leaves):
        raise SpecError(f"{name}: in_placements has {len(ins)} entries for {len(leaves)} arguments")
    tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    result: list[Any] = []

    def function(*given: torch.Tensor) -> Any:
        whole = list(leaves)
        for i, x in zip(tensors, given, strict=True):
            whole[i] = x
        value = func(*structure.build(whole), **kwargs)
        found, result_structure = flatten(value)
        result[:] = [result_structure, found]
        return value

    several = isinstance(out, tuple) and not all(isinstance(p, Placement) for p in out)
    outs = out if several else (out,)
    codes = tuple(_codes(ins[i], name) for i in tensors)
    grads = tuple(_codes(in_grads[i], name) for i in tensors) if in_grads is not None else tuple(map(_whole_sums, codes))
    names = None if mesh is None else mesh.mesh_dim_names
    if mesh is not None and names is None and mesh.ndim > 1:
        raise SpecError(f"{name}: give its device_mesh names for its dimensions (mesh_dim_names)")
    dims = tuple(names) if names is not None else None
    region = Region(
        name, function, codes, grads, tuple(_codes(o, name) for o in outs if o is not None), dims,
        None if mesh is None or dims is None else tuple(int(mesh.size(i)) for i in range(mesh.ndim)),
        {} if mesh is None or dims is None else {mesh.get_group(i).group_name: d for i, d in enumerate(dims)},
        tuple(leaves[i].requires_grad for i in tensors),
    )  # fmt: skip
    with recorder.paused():
        metas = whole_shapes(region, [_meta_of(leaves[i]) for i in tensors])
    flat = _Region.apply(recorder, region, metas, *(leaves[i] for i in tensors))
    supply = iter(flat)
    result_structure, found = result
    return result_structure.build([next(supply) if isinstance(x, torch.Tensor) else x for x in found])


class _Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recorder: Recorder, region: Region, metas: Sequence[Meta], *tensors: torch.Tensor) -> Any:
        outs = tuple(torch.empty(m.shape, dtype=getattr(torch, m.dtype), device="meta") for m in metas)
        ctx.key = recorder.region(region)
        recorder.emit(FORWARD_OP, (ctx.key, *tensors), {}, outs)
        ctx.save_for_backward(*tensors)
        ctx.recorder, ctx.region = recorder, region
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensors = ctx.saved_tensors
        made = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x, w in zip(tensors, ctx.region.wants, strict=True) if w]
        ctx.recorder.emit(BACKWARD_OP, (ctx.key, *tensors, *grads), {}, made)
        supply = iter(made)
        return (None, None, None, *(next(supply) if w else None for w in ctx.region.wants))


def _meta_of(x: torch.Tensor) -> Meta:
    return Meta(tuple(int(s) for s in x.shape), str(x.dtype).removeprefix("torch."))


def _codes(placements: Any, name: str) -> tuple[int, ...]:
    if placements is None:
        raise SpecError(f"{name}: every tensor needs placements")
    out = []
    for p in placements:
        if isinstance(p, Shard):
            out.append(int(p.dim))
        elif isinstance(p, Replicate):
            out.append(R)
        elif isinstance(p, Partial) and p.reduce_op == "sum":
            out.append(P)
        else:
            raise SpecError(f"{name}: {p} is no placement that plans know")
    return tuple(out)


def _whole_sums(codes: Sequence[int]) -> tuple[int, ...]:
    """The gradient of a partial sum is whole."""
    return tuple(R if c == P else c for c in codes)
