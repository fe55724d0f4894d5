"""Values of small recorded tensors that follow from constants: what a module's control flow may ask for while it is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autoparallel_pytorch.graph import Dtype, Node, Ref, Size

_LIMIT = 1 << 24
"""Elements; larger intermediate tensors are not computed for the sake of a decision."""


def evaluate(nodes: Sequence[Node], ref: Ref, values: Mapping[int, torch.Tensor]) -> tuple[torch.Tensor | None, str]:
    """The value of ``ref`` and the inputs it was read from, or None and the name of what is unknown."""
    known: dict[Ref, Any] = {}
    read: list[str] = []

    def value(node_id: int) -> str:
        stack = [node_id]
        while stack:
            node = nodes[stack[-1]]
            if Ref(node.id) in known:
                stack.pop()
                continue
            if node.placeholder:
                if node.id not in values:
                    return node.name
                if node.op == "input":
                    read.append(node.name)
                known[Ref(node.id)] = values[node.id]
                stack.pop()
                continue
            missing = [r.node for r in node.refs() if r not in known]
            if missing:
                stack.extend(missing)
                continue
            if any(m is not None and m.elements > _LIMIT for m in node.outs):
                return f"{node.op} of {max(m.elements for m in node.outs if m is not None)} elements"
            out = compute(node, known)
            for i, x in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
                known[Ref(node.id, i)] = x
            stack.pop()
        return ""

    unknown = value(ref.node)
    return (None, unknown) if unknown else (known[ref], ", ".join(dict.fromkeys(read)))


def compute(node: Node, known: Mapping[Ref, Any]) -> Any:
    """Run one recorded operator on real tensors."""

    def real(v: Any) -> Any:
        if isinstance(v, Ref):
            return known[v]
        if isinstance(v, Dtype):
            return getattr(torch, v.name)
        if isinstance(v, Size):
            raise TypeError("sizes are fixed while tracing")
        if isinstance(v, tuple):
            return [real(x) for x in v]
        return v

    name = "aten.reshape.default" if node.op == "aten.view.default" else node.op
    _, packet, overload = name.split(".")
    with torch.no_grad():
        return getattr(getattr(torch.ops.aten, packet), overload)(
            *(real(a) for a in node.args), **{k: real(v) for k, v in node.kwargs.items()}
        )
