"""How layers are spread over pipeline stages, and which stages can decide time or memory.

Axis legend: P pipeline stages (here: the distinct ones), C layer classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.model_flops import forward_flops_per_token
from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.stages import StageCut


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
    fill_counts: NDArray[np.float64]
    """Layers by class of the average chunk in the first row (chunks 0 … pp−1): what fills and drains the pipeline, [C]."""
    layers_per_stage: tuple[int, ...]
    """All stages, in order."""
    chunk_layers: tuple[int, ...]
    """Layers of every virtual stage, in order."""
    full_counts: NDArray[np.float64] | None = None
    """Layers under full recompute by class where they are chosen by stage, [P, C]; None: as the strategy says."""
    mean_full: NDArray[np.float64] | None = None
    """The same of the average stage, [C]."""
    full_by_stage: NDArray[np.float64] | None = None
    """The same of all stages in order, [all stages, C]."""

    v_shaped: bool = False
    """Two chunks per stage, folded back: stage i holds chunks i and 2·pp−1−i, the first stage both ends of the model."""

    @property
    def chunks(self) -> int:
        return len(self.chunk_layers)

    def stage_of(self, chunk: int) -> int:
        """The stage that holds a virtual stage."""
        return stage_of(chunk, len(self.layers_per_stage), v_shaped=self.v_shaped)


def stage_of(chunk: int, pp: int, *, v_shaped: bool) -> int:
    """Stage of a virtual stage: round robin, or down and back up."""
    return min(chunk, 2 * pp - 1 - chunk) if v_shaped else chunk % pp


def split_layers(
    n_layers: int, chunks: int, *, ends: tuple[float, float] = (0.0, 0.0), embedding_as_layer: bool = False
) -> tuple[int, ...]:
    """Layers per virtual stage, first to last.

    Even when it divides. With ``embedding_as_layer`` the embedding and the loss each take a layer's place.
    Otherwise the layers missing from an even split are taken one by one from the fullest chunk, where ``ends`` says what
    the embedding and the head (with the layers for multi-token prediction) cost in layers: what hand-written pipeline
    layouts do. Of equals, the last gives first.
    """
    if embedding_as_layer and chunks > 1 and (n_layers + 2) % chunks == 0:
        per = (n_layers + 2) // chunks
        return (per - 1, *([per] * (chunks - 2)), per - 1)
    per = -(-n_layers // chunks)
    out = [per] * chunks
    for _ in range(per * chunks - n_layers):
        load = [n + (ends[0] if i == 0 else 0.0) + (ends[1] if i == chunks - 1 else 0.0) for i, n in enumerate(out)]
        out[max((i for i in range(chunks) if out[i]), key=lambda i: (load[i], i))] -= 1
    return tuple(out)


@lru_cache(maxsize=256)
def ends_in_layers(arch: ModelArch) -> tuple[float, float]:
    """FLOPs of the embedding's and of the head's end, in average layers at a short sequence.

    The embedding costs next to nothing but counts as more than that, so that of equal chunks its one is relieved.
    """
    seq_len = 4096
    layer = sum(forward_flops_per_token(x.ops, seq_len) * len(where) for x, where in arch.layer_classes()) / arch.num_layers
    head = forward_flops_per_token(arch.epilogue.ops, seq_len)
    extra = sum(forward_flops_per_token(x.ops, seq_len) + head for x in arch.mtp)
    return 0.01, (head + extra) / layer if layer else 0.0


@lru_cache(maxsize=4096)
def stage_layout(arch: ModelArch, pp: int, vpp: int, *, embedding_as_layer: bool = False, v_shaped: bool = False) -> StageLayout:
    """Spread the model's layers over ``pp`` stages of ``vpp`` chunks each (2, folded back, when ``v_shaped``)."""
    chunks = pp * (2 if v_shaped else vpp)
    split = split_layers(arch.num_layers, chunks, ends=ends_in_layers(arch), embedding_as_layer=embedding_as_layer)
    return laid_out(arch, pp, split, v_shaped=v_shaped)


def laid_out(
    arch: ModelArch,
    pp: int,
    split: tuple[int, ...],
    full: tuple[tuple[int, ...], ...] | None = None,
    *,
    v_shaped: bool = False,
) -> StageLayout:
    """The layout of given chunks: ``split`` layers per virtual stage, ``full`` layers under full recompute by stage and class."""
    classes = arch.layer_classes()
    of_layer = np.zeros(arch.num_layers, dtype=np.int64)
    for c, (_, where) in enumerate(classes):
        of_layer[list(where)] = c
    again = np.array(full, dtype=np.float64).reshape(pp, len(classes)) if full is not None else np.zeros((pp, 0))
    counts = np.zeros((pp, len(classes)))
    fill = np.zeros(len(classes))
    start = 0
    for chunk, n in enumerate(split):
        here = np.bincount(of_layer[start : start + n], minlength=len(classes))
        counts[stage_of(chunk, pp, v_shaped=v_shaped)] += here
        if chunk < pp:
            fill += here / pp
        start += n
    end = stage_of(len(split) - 1, pp, v_shaped=v_shaped)
    seen: dict[tuple[float, ...], int] = {}
    for i in range(pp):
        seen.setdefault((float(i == 0), float(i == end), *counts[i], *again[i]), i)
    index = np.array(list(seen.values()))
    return StageLayout(
        counts=counts[index],
        first=(index == 0).astype(np.float64),
        last=(index == end).astype(np.float64),
        index=index.astype(np.float64),
        mean_counts=counts.mean(axis=0),
        fill_counts=fill,
        layers_per_stage=tuple(int(n) for n in counts.sum(axis=1)),
        chunk_layers=split,
        full_counts=again[index] if full is not None else None,
        mean_full=again.mean(axis=0) if full is not None else None,
        full_by_stage=again if full is not None else None,
        v_shaped=v_shaped,
    )


def cut_layout(arch: ModelArch, pp: int, cut: StageCut) -> StageLayout:
    """The layout of stages that were chosen one by one."""
    return laid_out(arch, pp, cut.layers, cut.full)


def first_recomputed(arch: ModelArch, pp: int, split: Sequence[int], first: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Layers by stage and class where each chunk of stage s recomputes its ``first[s]`` first layers."""
    classes = arch.layer_classes()
    of_layer = np.zeros(arch.num_layers, dtype=np.int64)
    for c, (_, where) in enumerate(classes):
        of_layer[list(where)] = c
    out = np.zeros((pp, len(classes)), dtype=np.int64)
    start = 0
    for chunk, n in enumerate(split):
        stage = chunk % pp
        out[stage] += np.bincount(of_layer[start : start + min(n, first[stage])], minlength=len(classes))
        start += n
    return tuple(tuple(int(n) for n in row) for row in out)
