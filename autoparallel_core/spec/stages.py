"""Pipeline stages that were chosen one by one: what a strategy leaves open."""

from __future__ import annotations

from attrs import frozen


@frozen
class StageCut:
    """Where the decoder is cut, and which layers recompute."""

    layers: tuple[int, ...]
    """Decoder layers of every virtual stage, in order."""
    full: tuple[tuple[int, ...], ...] | None = None
    """Layers under full recompute by stage and layer class; None: as the strategy says."""
    offloaded: int = 0
    """First layers of each stage whose activations wait in host memory."""
