"""Which modules a checkpoint's quantisation lists mean: matching of their many spellings against ours.

Checkpoints spell one layer as ``model.layers.3``, ``language_model.model.layers.3``, ``backbone.layers.3`` …,
number every expert, and use wildcards, regular expressions (``re:``) or bare module names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache

_SYNONYMS = {
    "ffn": "mlp", "feed_forward": "mlp", "block_sparse_moe": "mlp", "shared_expert": "shared_experts",
    "attn": "self_attn", "attention": "self_attn", "router": "gate",
}  # fmt: skip
"""Module name → the name under which it is compared."""

_PREFIX = re.compile(r"^(?:[A-Za-z_]\w*\.)*?(?:layers|h|blocks)\.(?=[\d*])")
_EXPERT_INDEX = re.compile(r"(\bexperts)\.\d+(?=\.|$)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OF_LAYER = re.compile(r"^layers\.(\d+)(.*)$")


def canonical(name: str) -> str:
    """One spelling for a module name or wildcard pattern."""
    name = _EXPERT_INDEX.sub(r"\1", name)
    name = _PREFIX.sub("layers.", name)
    return _WORD.sub(lambda m: _SYNONYMS.get(m[0], m[0]), name)


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _matches(pattern: str, name: str) -> bool:
    """Whether a canonical pattern covers a canonical module name or a module that contains it."""
    if "*" in pattern or "?" in pattern or "[" in pattern:
        return bool(_glob(pattern).match(name) or _glob(f"{pattern}.*").match(name))
    return f".{pattern}." in f".{name}."


class ModulePatterns:
    """A list of patterns, split by layer so that matching stays fast for lists of thousands."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._general: list[str] = []
        self._regex: list[re.Pattern[str]] = []
        self._of_layer: dict[int, dict[str, None]] = {}
        for p in patterns:
            if p.startswith("re:"):
                self._regex.append(re.compile(p[3:]))
                continue
            c = canonical(p)
            if m := _OF_LAYER.match(c):
                self._of_layer.setdefault(int(m[1]), {})[m[2]] = None
            else:
                self._general.append(c)

    def __bool__(self) -> bool:
        return bool(self._general or self._regex or self._of_layer)

    def key(self, layer: int) -> tuple[object, ...]:
        """Layers with equal keys match the same modules."""
        depends_on_layer = any("layers" in p for p in self._general) or self._regex
        return (tuple(self._of_layer.get(layer, ())), layer if depends_on_layer else None)

    def match(self, module: str, layer: int | None = None) -> bool:
        """Whether a module (of a decoder layer, or of the model when ``layer`` is None) is covered."""
        short = canonical(module)
        full = short if layer is None else f"layers.{layer}.{short}"
        if any(_matches(p, full) for p in self._general):
            return True
        if layer is not None:
            for rest in self._of_layer.get(layer, ()):
                if rest in {"", "*", ".*"} or (rest.startswith(".") and _matches_start(rest[1:], short)):
                    return True
        if self._regex:
            spelled = (f"model.layers.{layer}.{module}", f"language_model.model.layers.{layer}.{module}") if layer is not None else (
                module, f"model.{module}",
            )  # fmt: skip
            return any(r.match(s) for r in self._regex for s in spelled)
        return False


def _matches_start(pattern: str, name: str) -> bool:
    if "*" in pattern:
        return bool(_glob(pattern).match(name) or _glob(f"{pattern}.*").match(name))
    return name == pattern or name.startswith(f"{pattern}.")
