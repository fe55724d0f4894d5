"""How far back each layer's attention sees: the many ways in which configs write sliding and chunked patterns."""

from __future__ import annotations

from typing import Literal

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.config import ConfigView

Kind = Literal["full", "sliding", "chunked"]

_LAYER_TYPES: dict[str, Kind] = {
    "full_attention": "full", "global": "full", "attention": "full", "full": "full", "global_attention": "full",
    "sliding_attention": "sliding", "sliding_window": "sliding", "local": "sliding", "swa": "sliding",
    "chunked_attention": "chunked",
}  # fmt: skip


def listed_kind(config: ConfigView, layer: int) -> str | None:
    """The entry of ``layer_types`` (or ``layers_block_type``) for a layer, None when the config has no such list."""
    kinds = config.get("layer_types", "layers_block_type")
    if kinds is None:
        return None
    if not isinstance(kinds, list):
        raise SpecError(f"{config.name}: config field 'layer_types' must be a list, not {kinds!r}")
    if layer >= len(kinds):
        raise SpecError(f"{config.name}: layer_types lists {len(kinds)} layers, but the model has more")
    return str(kinds[layer])


def attention_kind(config: ConfigView, layer: int) -> Kind | None:
    """Full, sliding or chunked; None when the layer is said to be no softmax attention."""
    listed = listed_kind(config, layer)
    if listed is not None:
        return _LAYER_TYPES.get(listed)
    how = config.trait("window", default="declared")
    if how == "rope":
        return "chunked" if config.get("attention_chunk_size") is not None and _uses_rope(config, layer) else "full"
    if config.get("sliding_window", "sliding_window_size") is None or config.raw("use_sliding_window") is False:
        return "full"
    indices = config.raw("sliding_window_indices")
    if isinstance(indices, list):
        return "sliding" if config.per_layer("sliding_window_indices", layer=layer) else "full"
    if (pattern := config.get("sliding_window_pattern")) is not None:
        return "sliding" if _in_pattern(config, pattern, layer) else "full"
    if how == "alternate":
        return "sliding" if layer % 2 == 0 else "full"
    if how == "all":
        return "sliding"
    if how == "upper":
        start = config.get("max_window_layers")
        return "sliding" if config.raw("use_sliding_window") and start is not None and layer >= start else "full"
    config.note("sliding_window is set, but no field says which layers use it: full attention assumed in all")
    return "full"


def _in_pattern(config: ConfigView, pattern: object, layer: int) -> bool:
    """Whether a layer is local: ``n`` makes every n-th layer full, "LLLG" names one period, "alternating" every other."""
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return (layer + 1) % pattern != 0
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return pattern[layer % len(pattern)] == "L"
    if isinstance(pattern, str) and pattern.startswith("alternating"):
        return layer % 2 == 0
    raise SpecError(f"{config.name}: config field 'sliding_window_pattern' is not understood: {pattern!r}")


def _uses_rope(config: ConfigView, layer: int) -> bool:
    flags = config.raw("no_rope_layers")
    if isinstance(flags, list) and flags:
        return bool(config.per_layer("no_rope_layers", layer=layer))
    return (layer + 1) % config.size("no_rope_layer_interval", default=4) != 0
