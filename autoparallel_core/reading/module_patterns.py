"""Which modules a checkpoint's quantisation lists mean: matching of their many spellings against ours.

Checkpoints spell one layer as ``model.layers.3``, ``language_model.model.layers.3``, ``backbone.layers.3`` …,
number every expert, and use wildcards, regular expressions (``re:``) or bare module names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache

from autoparallel_core.errors import SpecError

_SYNONYMS = {
    "ffn": "mlp", "feed_forward": "mlp", "block_sparse_moe": "mlp",
    "shared_expert": "shared_experts", "shared_mlp": "shared_experts",
    "attn": "self_attn", "attention": "self_attn", "self_attention": "self_attn",
    "router": "gate",
    "w1": "gate_proj", "w3": "up_proj", "w2": "down_proj",
    "fc1": "up_proj", "fc_in": "up_proj", "c_fc": "up_proj", "dense_h_to_4h": "up_proj",
    "fc2": "down_proj", "fc_out": "down_proj", "dense_4h_to_h": "down_proj",
    "out_proj": "o_proj", "dense": "o_proj", "wo": "o_proj",
}  # fmt: skip
"""Module name → the name under which it is compared; our weights and the checkpoint's lists both pass through it."""

_FUSED = {
    ".gate_up_proj": (".gate_proj", ".up_proj"),
    **dict.fromkeys((".qkv_proj", ".query_key_value", ".c_attn", ".Wqkv", ".W_pack", ".wqkv"), (".q_proj", ".k_proj", ".v_proj")),
}
"""Ends of module names that stand for several of our matrices."""

_OUTER = r"(?:(?:model|language_model|text_model|transformer|backbone|decoder|llm|thinker|base_model)\.)*"
_PREFIX = re.compile(rf"^{_OUTER}(?:layers|h|blocks)\.(?=[\d*])")
_WRAPPER = re.compile(rf"^{_OUTER}(?=[A-Za-z_])")
_EXPERT_INDEX = re.compile(r"(\bexperts)\.\d+(?=\.|$)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OF_LAYER = re.compile(r"^layers\.(\d+)(.*)$")


def canonical(name: str) -> str:
    """One spelling for a module name or wildcard pattern."""
    name = _EXPERT_INDEX.sub(r"\1", name)
    name = _WRAPPER.sub("", _PREFIX.sub("layers.", name))
    return _WORD.sub(lambda m: _SYNONYMS.get(m[0], m[0]), name)


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _matches(pattern: str, name: str) -> bool:
    """Whether a canonical pattern covers a canonical module name or a module that contains it."""
    if "*" in pattern or "?" in pattern or "[" in pattern:
        return bool(_glob(pattern).match(name) or _glob(f"{pattern}.*").match(name))
    return f".{pattern}." in f".{name}."


def without_expert_numbers(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names once experts are not told apart: checkpoints list every one of thousands."""
    return tuple(n for n in dict.fromkeys(_EXPERT_INDEX.sub(r"\1", "\n".join(names)).split("\n")) if n)


def _unfused(pattern: str) -> tuple[str, ...]:
    for end, parts in _FUSED.items():
        if pattern.endswith(end):
            return tuple(pattern.removesuffix(end) + p for p in parts)
    return (pattern,)


def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.removeprefix("re:"))
    except re.error as e:
        raise SpecError(f"quantisation config: '{pattern}' is no regular expression: {e}") from None


class ModulePatterns:
    """A list of patterns, split by layer so that matching stays fast for lists of thousands."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._general: list[str] = []
        self._of_layer: dict[int, dict[str, None]] = {}
        every = tuple(patterns)
        self._regex = [_regex(p) for p in every if p.startswith("re:")]
        named = without_expert_numbers(p for p in every if not p.startswith("re:"))
        for c in (canonical(one) for name in named for one in _unfused(name)):
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

    def match(self, module: str, layer: int | None = None, *, block: int | None = None) -> bool:
        """Whether a module is covered: of decoder layer ``layer``, of prediction block ``block``, or of the model."""
        short = canonical(module)
        full = short if layer is None else f"layers.{layer}.{short}"
        names = (full,) if block is None else (full, f"mtp.layers.{block}.{short}", f"mtp.{block}.{short}")
        if any(_matches(p, n) for p in self._general for n in names):
            return True
        if layer is not None:
            for rest in self._of_layer.get(layer, ()):
                if rest in {"", "*", ".*"} or (rest.startswith(".") and _matches_start(rest[1:], short)):
                    return True
        if not self._regex:
            return False
        at = module if layer is None else f"layers.{layer}.{module}"
        spelled = [at, f"model.{at}", f"language_model.{at}", f"language_model.model.{at}", f"model.language_model.{at}"]
        if block is not None:
            spelled.append(f"mtp.layers.{block}.{module}")
        return any(r.match(s) for r in self._regex for s in spelled)


def _matches_start(pattern: str, name: str) -> bool:
    if "*" in pattern:
        return bool(_glob(pattern).match(name) or _glob(f"{pattern}.*").match(name))
    return name == pattern or name.startswith(f"{pattern}.")
