"""Does a sharding rule hold? Run the operator on the pieces of random tensors and compare with the whole.

For authors of rules, and for this planner's own tests: a rule that passes here may be used on any mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autoparallel_pytorch.graph import Dtype, Graph, Meta, Node, Ref, Size
from autoparallel_pytorch.local_ops import function
from autoparallel_pytorch.localize import localized
from autoparallel_pytorch.own_rules import Rule
from autoparallel_pytorch.placement import PMAX, PMIN, P
from autoparallel_pytorch.program import Length, Offset, Value


def error(graph: Graph, node: Node, rule: Rule, *, pieces: int = 2, seed: int = 0) -> float | None:
    """Largest relative error of the results under a rule on one mesh dimension; None when shapes do not divide."""
    outs, ins = rule
    refs = list(node.refs())
    metas = [graph.meta(r) for r in refs]
    for code, meta in [*zip(ins, metas, strict=True), *zip(outs, node.outs, strict=True)]:
        if meta is not None and code >= 0 and (code >= len(meta.shape) or meta.shape[code] % pieces or not meta.shape[code]):
            return None
    generator = torch.Generator().manual_seed(seed)
    whole = _inputs(graph, node, metas, generator)
    expected = _run(graph, node, node.op, node.args, whole, 0)
    op, args = localized(graph, node, tuple((o,) for o in outs), tuple((i,) for i in ins), (pieces,))
    parts = []
    for rank in range(pieces):
        local = [_piece(x, code, rank, pieces) for x, code in zip(whole, ins, strict=True)]
        parts.append(_run(graph, node, op, args, local, rank))
    worst = 0.0
    for i, (code, want) in enumerate(zip(outs, expected, strict=True)):
        if want is None:
            continue
        got = _joined([x for p in parts if (x := p[i]) is not None], code)
        if got.shape != want.shape:
            return float("inf")
        scale = float(want.double().abs().max()) if want.numel() else 0.0
        worst = max(worst, float((got.double() - want.double()).abs().max()) / max(scale, 1e-30) if want.numel() else 0.0)
    return worst


def _inputs(graph: Graph, node: Node, metas: Sequence[Meta], generator: torch.Generator) -> list[torch.Tensor]:
    """Random values; indices stay inside of what they index. Backward operators get what their forward would have saved."""
    limit = min((s for m in metas if m.floating for s in m.shape if s > 1), default=2)
    if node.op.startswith("aten.embedding_dense_backward"):
        limit = int(node.args[2])
    out = []
    for meta in metas:
        if meta.floating:
            out.append(torch.rand(meta.shape, generator=generator, dtype=torch.float64).add(0.5))
        elif meta.dtype == "bool":
            out.append(torch.rand(meta.shape, generator=generator) < 0.5)
        else:
            out.append(torch.randint(0, limit, meta.shape, generator=generator, dtype=getattr(torch, meta.dtype)))
    del graph
    return out


def _piece(x: torch.Tensor, code: int, rank: int, pieces: int) -> torch.Tensor:
    if code >= 0:
        return x.chunk(pieces, code)[rank].contiguous()
    if code == P:
        return x * (0.75 if rank == 0 else 0.25 / (pieces - 1))
    if code in (PMAX, PMIN):
        return x if rank == 0 else x + (-1.0 if code == PMAX else 1.0)
    return x


def _joined(parts: Sequence[torch.Tensor], code: int) -> torch.Tensor:
    if code >= 0:
        return torch.cat(list(parts), code)
    if code == P:
        return torch.stack(list(parts)).sum(0)
    if code in (PMAX, PMIN):
        stacked = torch.stack(list(parts))
        return stacked.amax(0) if code == PMAX else stacked.amin(0)
    if any(not torch.allclose(p.double(), parts[0].double(), atol=1e-9) for p in parts[1:]):
        return parts[0].double() * float("inf")
    return parts[0]


def _run(graph: Graph, node: Node, op: str, args: Any, tensors: Sequence[torch.Tensor], rank: int) -> list[torch.Tensor | None]:
    supply = iter(tensors)

    def real(v: Any) -> Any:
        if isinstance(v, (Value, Ref)):
            return next(supply)
        if isinstance(v, Dtype):
            return torch.float64 if v.name in ("float32", "bfloat16", "float16") else getattr(torch, v.name)
        if isinstance(v, (Size, Length)):
            return v.at(graph.batch or 1)
        if isinstance(v, Offset):
            return rank * v.length.at(graph.batch or 1) if v.mesh_dims else 0
        if isinstance(v, tuple):
            return [real(x) for x in v]
        return v

    plain = [real(a) for a in args]
    kwargs = {k: real(v) for k, v in node.kwargs.items()}
    if op == "autoparallel.scatter_rows" and len(plain) == 3:
        plain.append(0)
    out = function(op)(*plain, **kwargs)
    return [x if isinstance(x, torch.Tensor) else None for x in (out if isinstance(out, (tuple, list)) else (out,))]
