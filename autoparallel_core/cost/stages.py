"""How layers are spread over pipeline stages, and which stages can decide time or memory.

Axis legend: P pipeline stages (here: the distinct ones), C layer classes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.spec.arch import ModelArch


@frozen(eq=False)
class StageLayout:
    """Distinct stages of one (pp, vpp): equal stages are represented by the earliest, which holds most in flight."""

    counts: NDArray[np.float64]
    """Layers by class, [P, C]."""
    first: NDArray[np.float64]
    """1 where the stage owns the embedding, [P]."""
    last: NDArray[np.float64]
    """1 where the stage owns the head, the loss and the MTP layers, [P]."""
    index: NDArray[np.float64]
    """Position of the stage in the pipeline, [P]."""
    mean_counts: NDArray[np.float64]
    """Layers by class of the average stage, [C]."""
    layers_per_stage: tuple[int, ...]
    """All stages, in order."""


def split_layers(n_layers: int, chunks: int, *, embedding_as_layer: bool = False) -> tuple[int, ...]:
    """Layers per virtual stage, first to last.

    Even when it divides. With ``embedding_as_layer`` the embedding and the loss each take a layer's place.
    Otherwise the missing layers are taken from the ends, the last first: its head and loss, then the embedding,
    cost about a layer each (what hand-written pipeline layouts do).
    """
    if embedding_as_layer and chunks > 1 and (n_layers + 2) % chunks == 0:
        per = (n_layers + 2) // chunks
        return (per - 1, *([per] * (chunks - 2)), per - 1)
    per = -(-n_layers // chunks)
    out = [per] * chunks
    order = [i for pair in zip(range(chunks - 1, -1, -1), range(chunks), strict=True) for i in pair]
    missing = per * chunks - n_layers
    for i in dict.fromkeys(order):
        if not missing:
            break
        out[i] -= 1
        missing -= 1
    return tuple(out)


@lru_cache(maxsize=4096)
def stage_layout(arch: ModelArch, pp: int, vpp: int, *, embedding_as_layer: bool = False) -> StageLayout:
    """Spread the model's layers over ``pp`` stages of ``vpp`` chunks each (chunk c on stage c mod pp)."""
    classes = arch.layer_classes()
    of_layer = np.zeros(arch.num_layers, dtype=np.int64)
    for c, (_, where) in enumerate(classes):
        of_layer[list(where)] = c
    split = split_layers(arch.num_layers, pp * vpp, embedding_as_layer=embedding_as_layer)
    counts = np.zeros((pp, len(classes)))
    start = 0
    for chunk, n in enumerate(split):
        counts[chunk % pp] += np.bincount(of_layer[start : start + n], minlength=len(classes))
        start += n
    seen: dict[tuple[float, ...], int] = {}
    for i in range(pp):
        seen.setdefault((float(i == 0), float(i == pp - 1), *counts[i]), i)
    index = np.array(list(seen.values()))
    return StageLayout(
        counts=counts[index],
        first=(index == 0).astype(np.float64),
        last=(index == pp - 1).astype(np.float64),
        index=index.astype(np.float64),
        mean_counts=counts.mean(axis=0),
        layers_per_stage=tuple(int(n) for n in counts.sum(axis=1)),
    )
