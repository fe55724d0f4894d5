"""What an operator can do with sharded inputs: the one file that reads ``torch.distributed.tensor``'s private rules.

Tested with torch 2.13; the rules are read as data, on a mesh of one dimension and without any process group. A rule says:
with these placements of the inputs, running the operator on the shards gives these placements of the outputs. Rules of one
mesh dimension combine freely over several as long as every shard has the same shape.

Where rules come from, in order: those a user registered on the planner; ours, for operators of our own and for those
whose torch rule hides a redistribution (``own_rules``); torch's single-dimension rules; torch's strategies, which
``torch.distributed.tensor.experimental.register_sharding`` extends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, TupleStrategy

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.graph import Dtype, Graph, Node, Ref, Size, map_refs
from autoparallel_pytorch.own_rules import OWN, Rule, pointwise, replicated
from autoparallel_pytorch.placement import PMAX, PMIN, P, R, parse

TESTED = ("2.13", "2.14")
"""From this version of torch up to, not including, that one."""

_REDUCTIONS = {"sum": P, "max": PMAX, "min": PMIN}


@frozen
class Found:
    """The rules of one operator on one mesh dimension, the replicated one first."""

    rules: tuple[Rule, ...]
    source: str
    """``torch``, ``planner``, ``user``, or ``none`` when nobody knows the operator."""


class Rules:
    """Rules by operator and shapes, remembered for one planning run."""

    def __init__(self, extra: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._extra = dict(extra or {})
        self._mesh = DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=0)
        self._propagator = DTensor._op_dispatcher.sharding_propagator
        self._found: dict[Any, Found] = {}

    def of(self, graph: Graph, node: Node) -> Found:
        """The rules of a node. Raises SpecError when a user's rule is malformed."""
        refs = list(node.refs())
        metas = tuple(graph.meta(r) for r in refs)
        key = (node.op, _shape_of(node.args, graph), tuple((k, _shape_of(v, graph)) for k, v in node.kwargs.items()))
        found = self._found.get(key)
        if found is None:
            found = self._find(graph, node, metas)
            self._found[key] = found
        return found

    def _find(self, graph: Graph, node: Node, metas: Sequence[Any]) -> Found:
        n_out, n_in = len(node.outs), len(metas)
        base = replicated(n_out, n_in)
        if node.op in self._extra:
            plain = map_refs(node.args, lambda _: None)
            given = _checked(node.op, self._extra[node.op](tuple(m.shape for m in metas), plain), n_out, n_in)
            return Found(_unique([base, *(r for r in given if _sound(r, node, metas))]), "user")
        if node.op in OWN:
            return Found(_unique([base, *OWN[node.op](node, metas)]), "planner")
        op = overload(node.op)
        rules: list[Rule] = []
        source = "none"
        if op in self._propagator.op_single_dim_strategy_funcs:
            rules, source = self._single(graph, node, op, n_out, n_in), "torch"
        elif op in self._propagator.op_strategy_funcs:
            rules, source = self._strategies(graph, node, op, n_out, n_in), "torch"
        elif torch.Tag.pointwise in op.tags and n_out == 1:
            rules, source = pointwise(node, metas), "planner"
        return Found(_unique([base, *(r for r in rules if _sound(r, node, metas))]), source)

    def _schema(self, graph: Graph, node: Node, op: Any, placements: Callable[[int], Sequence[Any]]) -> OpSchema:
        def real(v: Any) -> Any:
            if isinstance(v, Ref):
                meta = graph.meta(v)
                x = torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device="meta")
                info = TensorMeta(x.shape, x.stride(), x.dtype)
                return OpStrategy([OpSpec(DTensorSpec(self._mesh, (p,), tensor_meta=info)) for p in placements(len(meta.shape))])
            if isinstance(v, Dtype):
                return getattr(torch, v.name)
            if isinstance(v, Size):
                return v.at(graph.batch or 1)
            if isinstance(v, tuple):
                inner = [real(x) for x in v]
                return TupleStrategy(inner) if inner and all(isinstance(x, OpStrategy) for x in inner) else inner
            return v

        return OpSchema(op, tuple(real(a) for a in node.args), {k: real(v) for k, v in node.kwargs.items()})

    def _single(self, graph: Graph, node: Node, op: Any, n_out: int, n_in: int) -> list[Rule]:
        schema = self._schema(graph, node, op, lambda _: [Replicate()])
        found = self._propagator.op_single_dim_strategy_funcs[op].func(op, schema.args_meta, schema.kwargs_meta)
        rules = []
        for row in found:
            codes = [c for p in row if (c := _code(p)) is not None]
            if len(codes) == len(row) == n_out + n_in:
                rules.append((tuple(codes[:n_out]), tuple(codes[n_out:])))
        return rules

    def _strategies(self, graph: Graph, node: Node, op: Any, n_out: int, n_in: int) -> list[Rule]:
        schema = self._schema(graph, node, op, lambda ndim: [Replicate(), Partial(), *(Shard(d) for d in range(ndim))])
        try:
            strategy: Any = self._propagator.op_strategy_funcs[op](schema)
        except (RuntimeError, NotImplementedError, AssertionError, ValueError, IndexError, AttributeError):
            return []
        rules = []
        for spec in getattr(strategy, "strategies", ()):
            if spec.input_specs is None:
                continue
            outs = spec.output_specs if isinstance(spec.output_specs, (tuple, list)) else (spec.output_specs,)
            specs = [*outs, *spec.input_specs]
            codes = [c for s in specs if (c := R if s is None else _code(s.placements[0])) is not None]
            if len(codes) == len(specs) == n_out + n_in:
                rules.append((tuple(codes[:n_out]), tuple(codes[n_out:])))
        return rules


def overload(name: str) -> Any:
    """The operator of a node's name. Raises SpecError when this torch has none of that name."""
    namespace, packet, variant = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), variant)
    except AttributeError:
        raise SpecError(
            f"torch {torch.__version__} has no operator {name}"
            + ("" if namespace == "aten" else ": import the package that registers it first")
        ) from None


def _code(p: Any) -> int | None:
    """A placement as an integer; a partial that is masked on reading is handled by the operator itself, so R when read."""
    name = type(p).__name__
    if name == "_ShardingPlaceholder" or isinstance(p, Shard):
        return int(p.dim)
    if isinstance(p, Replicate):
        return R
    if name == "_MaskPartial":
        return P
    if isinstance(p, Partial):
        return _REDUCTIONS.get(p.reduce_op)
    return None


MASKED = frozenset({"aten.embedding.default", "aten.gather.default"})
"""Operators whose torch rule marks an index as masked partial: the index is replicated, ranks mask what is not theirs."""


def _sound(rule: Rule, node: Node, metas: Sequence[Any]) -> bool:
    """Without sums of integers that nobody needs, and with the dimensions that exist."""
    outs, ins = rule
    for code, meta in [*zip(outs, node.outs, strict=True), *zip(ins, metas, strict=True)]:
        if meta is None:
            continue
        if code >= len(meta.shape) or (code == P and not meta.floating):
            return False
    return True


def _unique(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(dict.fromkeys(rules))


def _checked(op: str, given: Any, n_out: int, n_in: int) -> list[Rule]:
    rules = []
    for row in given:
        try:
            outs, ins = row
            rule = (tuple(_user_code(p) for p in outs), tuple(_user_code(p) for p in ins))
        except (TypeError, ValueError):
            raise SpecError(f"the rule of {op} must give (outputs, inputs) pairs of placements, not {row!r}") from None
        if (len(rule[0]), len(rule[1])) != (n_out, n_in):
            raise SpecError(f"the rule of {op} gives {len(rule[0])} outputs and {len(rule[1])} inputs; it has {n_out} and {n_in}")
        rules.append(rule)
    return rules


def _user_code(p: Any) -> int:
    if isinstance(p, int):
        return p
    if isinstance(p, str):
        return parse(p, 1)[0]
    code = _code(p)
    if code is None:
        raise ValueError(p)
    return code


def _shape_of(value: Any, graph: Graph) -> Any:
    if isinstance(value, Ref):
        meta = graph.meta(value)
        return meta.shape, meta.dtype
    if isinstance(value, tuple) and not isinstance(value, (Dtype, Size)):
        return tuple(_shape_of(v, graph) for v in value)
    return value


def check_version() -> str | None:
    """A sentence when this torch is outside of the tested range."""
    from packaging.version import Version

    here, (first, last) = Version(torch.__version__.split("+")[0]), TESTED
    if Version(first) <= here < Version(last):
        return None
    return f"torch {torch.__version__} is outside of the tested range {first} to {last}; its sharding rules may have moved"
