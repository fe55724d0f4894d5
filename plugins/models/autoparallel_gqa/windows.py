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

_WINDOW = ("sliding_window", "sliding_window_size", "window_size", "local_attention_window")


def attention_kind(config: ConfigView, layer: int) -> Kind | None:
    """Full, sliding or chunked; None when the layer is said to be no softmax attention."""
    if isinstance(config.raw("attn_type_list"), list) and config.per_layer("attn_type_list", layer=layer) == 0:
        return None
    listed = config.per_layer("layer_types", "attention_layers", layer=layer)
    if listed is not None:
        return _listed(config, str(listed))
    how = config.trait("window", default="declared")
    if how == "rope":
        return "chunked" if config.get("attention_chunk_size") is not None and _uses_rope(config, layer) else "full"
    flags = config.raw("hybrid_layer_pattern") or config.raw("sliding_window_indices")
    if isinstance(flags, list) and layer < len(flags):
        return "sliding" if flags[layer] else "full"
    if config.get(*_WINDOW) is None or config.raw("use_sliding_window") is False:
        return "full"
    if (pattern := config.get("sliding_window_pattern", "global_attn_every_n_layers")) is not None:
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


def window_tokens(config: ConfigView) -> int:
    """Length of the sliding window."""
    return config.size(*_WINDOW)


def _listed(config: ConfigView, kind: str) -> Kind | None:
    found = _LAYER_TYPES.get(kind)
    if found == "sliding" and config.get(*_WINDOW) is None:
        raise SpecError(f"{config.name}: layer_types names sliding layers, but sliding_window is not given")
    return found


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
