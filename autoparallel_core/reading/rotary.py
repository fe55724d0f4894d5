"""Size of the rotary tables that inference engines precompute: one row of sines and cosines per position.

A table has ``positions × rotated width`` elements. Linear scaling stretches the positions by its factor; YaRN and the
rest tabulate the context they are stretched to, which is ``max_position_embeddings`` (or original length × factor).
Models that rotate window layers by another base have a second, unscaled table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoparallel_core.spec.config import ConfigView

STRETCHED = frozenset({"linear", "dynamic"})
"""Scaling kinds whose table covers ``max_position_embeddings × factor``."""


def rotary_cache_elements(view: ConfigView) -> int:
    """Elements of all distinct rotary tables of a config, 0 when it says nothing about rotary positions."""
    return sum(rows * _width(view, kind, p) for kind, p, rows in _tables(view))


def rotary_positions(view: ConfigView) -> int:
    """Longest context that a config's rotary scaling reaches, 0 when it says nothing about rotary positions."""
    return max((rows for _, _, rows in _tables(view)), default=0)


def _tables(view: ConfigView) -> list[tuple[str, Mapping[str, Any], int]]:
    """Kind, parameters and rows of every distinct table."""
    positions = view.raw("max_position_embeddings")
    if not isinstance(positions, int) or isinstance(positions, bool) or positions < 1:
        return []
    tables: list[tuple[str, Mapping[str, Any]]]
    parameters = view.raw("rope_parameters")
    if isinstance(parameters, Mapping) and any(isinstance(v, Mapping) for v in parameters.values()):
        tables = [(kind, p) for kind, p in parameters.items() if isinstance(p, Mapping)]
    else:
        scaling = view.raw("rope_scaling")
        plain = parameters if isinstance(parameters, Mapping) else {}
        tables = [("", {**plain, **(scaling if isinstance(scaling, Mapping) else {})})]
        if view.raw("rope_local_base_freq") is not None or view.raw("rope_local_theta") is not None:
            tables.append(("local", {}))
    return [(kind, p, _positions(positions, p)) for kind, p in tables]


def _positions(positions: int, parameters: Mapping[str, Any]) -> int:
    kind = parameters.get("rope_type") or parameters.get("type")
    factor = parameters.get("factor")
    if not isinstance(factor, int | float) or isinstance(factor, bool) or factor <= 0:
        return positions
    if kind in STRETCHED:
        return int(positions * factor)
    original = parameters.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int):
        return int(original * factor)
    return positions


def _width(view: ConfigView, kind: str, parameters: Mapping[str, Any]) -> int:
    """Rotated width per head: stated, or a share of the head width."""
    for name in ("qk_rope_head_dim", "rotary_dim"):
        stated = view.raw(name)
        if isinstance(stated, int) and stated > 0:
            return stated
    head = (view.raw("global_head_dim") if kind == "full_attention" else None) or view.raw("head_dim")
    if not isinstance(head, int):
        heads = view.raw("num_attention_heads")
        hidden = view.raw("hidden_size")
        head = hidden // heads if isinstance(heads, int) and heads > 0 and isinstance(hidden, int) else 0
    share = parameters.get("partial_rotary_factor")
    if share is None:
        share = next(
            (v for n in ("partial_rotary_factor", "rotary_pct", "rotary_percent") if (v := view.raw(n)) is not None), 1.0
        )
    return int(head * share) if isinstance(share, int | float) else head
