"""Placements as small integers, one per mesh dimension: ``d ≥ 0`` shards tensor dimension d, the others are below.

A tuple of them lays a tensor out over the mesh. Two mesh dimensions on one tensor dimension nest from left to right, as
``torch.distributed.tensor`` nests them: the first mesh dimension cuts the outer blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoparallel_core.errors import SpecError

R = -1
"""Replicated."""
P = -2
"""Partial: the value is the sum over the ranks."""
PMAX, PMIN = -3, -4
"""The value is the largest, smallest over the ranks."""

Placements = tuple[int, ...]
_NAMES = {R: "R", P: "P", PMAX: "P(max)", PMIN: "P(min)"}


def text(placements: Sequence[int]) -> str:
    """``S(0) R``: the notation of plans and pins."""
    return " ".join(_NAMES.get(p, f"S({p})") for p in placements)


def parse(value: str, n_dims: int) -> Placements:
    """The inverse of :func:`text`; commas may separate, and one placement stands for every mesh dimension of a 1-D mesh.

    Raises:
        SpecError: a word that is no placement, or a count other than the mesh's dimensions.
    """
    known = {v: k for k, v in _NAMES.items()}
    found = []
    for word in value.replace(",", " ").split():
        if word in known:
            found.append(known[word])
        elif word.startswith("S(") and word.endswith(")") and word[2:-1].isdigit():
            found.append(int(word[2:-1]))
        else:
            raise SpecError(f"'{word}' in '{value}' is no placement; write R, S(dimension) or P")
    if len(found) != n_dims:
        raise SpecError(
            f"'{value}' gives {len(found)} placements for {n_dims} mesh dimensions; write one per dimension, as in 'S(0) R'"
        )
    return tuple(found)


def shards(placements: Sequence[int], mesh: Sequence[int]) -> int:
    """Into how many pieces the tensor is cut."""
    return math.prod(n for p, n in zip(placements, mesh, strict=True) if p >= 0)


def cuts(placements: Sequence[int], mesh: Sequence[int]) -> dict[int, int]:
    """Pieces per tensor dimension."""
    found: dict[int, int] = {}
    for p, n in zip(placements, mesh, strict=True):
        if p >= 0:
            found[p] = found.get(p, 1) * n
    return found


def fits(placements: Sequence[int], mesh: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether every piece has the same shape."""
    return all(d < len(shape) and shape[d] and shape[d] % n == 0 for d, n in cuts(placements, mesh).items())


def which_fit(placements: NDArray[np.int64], mesh: Sequence[int], shape: Sequence[int]) -> NDArray[np.bool_]:
    """:func:`fits` of many placements [N, mesh dimensions] at once."""
    found = np.ones(len(placements), dtype=bool)
    for d in range(int(placements.max(initial=-1)) + 1):
        here = placements == d
        length = shape[d] if d < len(shape) else 0
        pieces = np.where(here, np.asarray(mesh), 1).prod(axis=1)
        found &= ~here.any(axis=1) | ((length > 0) & (length % pieces == 0))
    return found


def local_shape(placements: Sequence[int], mesh: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    cut = cuts(placements, mesh)
    return tuple(s // cut.get(d, 1) for d, s in enumerate(shape))
