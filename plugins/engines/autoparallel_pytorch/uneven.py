"""Dimensions that a mesh does not divide: pieces have one shape in a plan, so these are not cut, and a user should know."""

from __future__ import annotations

from autoparallel_pytorch.graph import Graph
from autoparallel_pytorch.machine import Mesh

SHARE = 0.01
"""Of all parameters' bytes; smaller ones are not worth a sentence."""


def uneven(graph: Graph, mesh: Mesh) -> list[str]:
    """A sentence per large parameter, and per input, with a dimension that some mesh dimension does not divide."""
    metas = {name: graph.nodes[n].outs[0] for name, n in graph.parameters.items()}
    total = sum(m.bytes for m in metas.values() if m is not None)
    found: dict[str, list[str]] = {}
    tensors = [(name, m, range(len(m.shape))) for name, m in metas.items() if m is not None and m.bytes > SHARE * total]
    inputs = ((name, graph.nodes[n].outs[0]) for name, n in graph.inputs.items())
    tensors += [(f"input {name}", m, range(min(1, len(m.shape)))) for name, m in inputs if m is not None]
    for name, meta, dims in tensors:
        for d in dims:
            size = meta.shape[d]
            wrong = {n: s for n, s in zip(mesh.names, mesh.sizes, strict=True) if size > 1 and size % s}
            if wrong:
                key = (
                    f"dimension {d} of {size} does not go in {' or '.join(f'{s} ({n})' for n, s in wrong.items())} equal pieces "
                    f"and is not cut there; {_next(size, max(wrong.values()))} would"
                )
                found.setdefault(key, []).append(name)
    return [
        f"{', '.join(names[:2])}{f' and {len(names) - 2} more' if len(names) > 2 else ''}: {key}" for key, names in found.items()
    ]


def _next(size: int, pieces: int) -> int:
    return -(-size // pieces) * pieces
