"""The axes of a search: which values each strategy column may take."""

from __future__ import annotations

from attrs import frozen


@frozen
class Space:
    """Legal values per axis, before divisibility and rules. Empty tuple: the core's own choice for the problem."""

    tp: tuple[int, ...] = ()
    sp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    vpp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    etp: tuple[int, ...] = ()
    attn_dp: tuple[int, ...] = ()
    zero: tuple[int, ...] = ()
    hsdp: bool = False
    """Also enumerate shard groups smaller than dp·cp (hybrid sharding)."""
    mbs: tuple[int, ...] = ()
    recompute: tuple[str, ...] = ()
    """Of RECOMPUTE; ``full`` also enumerates partial layer counts when ``partial_recompute``."""
    partial_recompute: bool = True
    offload: tuple[int, ...] = ()
