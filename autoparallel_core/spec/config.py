"""A model's ``config.json`` as plugins see it: one flat view that remembers what was read.

The view holds the language model's fields (``text_config`` and the like already descended into) with the
top-level fields that belong to the whole model underneath. Reading through it is what makes an unread,
unknown field visible to the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.spec.arch import Layer

_MISSING = object()

MAX_SIZE = 10**9
"""No size or count of a model is larger; a larger one is taken for a mistake."""

ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "model_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("n_head_kv", "num_kv_heads", "n_kv_heads", "multi_query_group_num", "num_attention_groups"),
    "head_dim": ("kv_channels", "hidden_size_per_head", "attention_head_dim"),
    "intermediate_size": ("n_inner", "ffn_hidden_size", "ffn_dim", "d_ff"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "model_max_length", "seq_length"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k", "experts_per_token",
    ),
    "moe_intermediate_size": ("expert_intermediate_size", "moe_ffn_hidden_size"),
    "hidden_act": ("hidden_activation", "activation_function", "mlp_hidden_act"),
}  # fmt: skip
"""Field → other names under which checkpoints store the same thing, tried in this order."""


def _names(names: tuple[str, ...]) -> Iterator[str]:
    for n in names:
        yield n
        yield from ALIASES.get(n, ())


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class ConfigView:
    """Read access to a config's fields.

    Every reading method tries the :data:`ALIASES` of a name too.

    Args:
        fields: the language model's fields.
        name: what to call the model in messages.
        whole: the config as it was, for plugins that look at other parts (towers).
    """

    def __init__(self, fields: Mapping[str, Any], *, name: str, whole: Mapping[str, Any] | None = None) -> None:
        self._fields = dict(fields)
        self.name = name
        self.whole: Mapping[str, Any] = whole if whole is not None else self._fields
        self.read: set[str] = set()
        self.notes: dict[str, None] = {}
        """Assumptions made by plugins, in order of first mention (a dict used as an ordered set)."""
        self.built: tuple[Layer, ...] = ()
        """The decoder layers as built, for ``parse_extras`` (empty before)."""
        self._defaults: Mapping[str, Any] = {}
        self._traits: Mapping[str, Any] = {}

    def adopt(self, *, defaults: Mapping[str, Any], traits: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        """Take what the model type implies (hook ``parse_family``).

        Args:
            defaults: values of fields that the file omits; reading one leaves a note.
            traits: facts that no field states.
            fields: what the config says elsewhere or in its type's own way, put under the usual names.
        """
        self._defaults, self._traits = dict(defaults), dict(traits)
        self._fields.update({k: v for k, v in fields.items() if v is not None})
        self.read.update(fields)

    def __contains__(self, field: str) -> bool:
        """Whether the file itself gives the field (under any alias) a value."""
        return any(self._fields.get(n) is not None for n in _names((field,)))

    def raw(self, field: str) -> Any:
        """The field as it stands (None when absent), counted as read."""
        self.read.add(field)
        return self._fields.get(field)

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of the names and their aliases that is present and not null; all of them count as read.

        When the file has none, the model type's own default is taken with a visible note, then ``default``.
        """
        every = tuple(_names(names))
        self.read.update(every)
        for n in every:
            v = self._fields.get(n)
            if v is not None:
                return v
        for n in every:
            if n in self._defaults:
                v = self._defaults[n]
                self.note(f"config has no '{n}': the default of model type '{self.model_type}', {_short(v)}, is assumed")
                return v
        return default

    def trait(self, name: str, default: Any = None) -> Any:
        """A fact that the model type implies (hook ``parse_family``), or ``default``."""
        return self._traits.get(name, default)

    def require(self, *names: str) -> Any:
        """As get, but raises SpecError naming the field when none is present."""
        v = self.get(*names, default=_MISSING)
        if v is _MISSING:
            others = [n for n in _names(names) if n != names[0]]
            state = "is null" if names[0] in self._fields else "is missing"
            raise SpecError(
                f"{self.name}: config field '{names[0]}' {state}" + (f" (also looked for {', '.join(others)})" if others else "")
            )
        return v

    def size(self, *names: str, default: int | None = None) -> int:
        """A positive integer field. Raises SpecError when missing without default, not an integer, or < 1."""
        v = self.get(*names, default=default)
        return self.positive(names[0], self.require(*names) if v is None else v)

    def positive(self, field: str, value: Any) -> int:
        """The value, found in or under ``field``, as a size. Raises SpecError naming the field when it is none."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise SpecError(f"{self.name}: config field '{field}' must be a positive integer (up to {MAX_SIZE:g}), not {value!r}")
        return value

    def count(self, *names: str, default: int = 0) -> int:
        """A non-negative integer field; null and absent give the default."""
        v = self.get(*names, default=default)
        if isinstance(v, bool) or not isinstance(v, int) or not 0 <= v <= MAX_SIZE:
            raise SpecError(f"{self.name}: config field '{names[0]}' must be a whole number (up to {MAX_SIZE:g}), not {v!r}")
        return v

    def largest(self, *names: str, default: int = 0) -> int:
        """A non-negative integer field, or the largest of a list of them (per layer, per modality)."""
        v = self.get(*names)
        values = v if isinstance(v, list | tuple) else [v]
        if v is None or not values:
            return default
        for one in values:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= MAX_SIZE:
                raise SpecError(f"{self.name}: config field '{names[0]}' must be a whole number or a list of them, not {v!r}")
        return int(max(values))

    def flag(self, *names: str, default: bool = False) -> bool:
        v = self.get(*names, default=default)
        if not isinstance(v, bool | int):
            raise SpecError(f"{self.name}: config field '{names[0]}' must be true or false, not {v!r}")
        return bool(v)

    def layers(self, *names: str) -> tuple[int, ...] | None:
        """A list of layer indices (or a string of them, comma-separated); None when absent."""
        v = self.get(*names)
        if isinstance(v, str):
            v = [int(x) if x.strip().isdigit() else x for x in v.split(",") if x.strip()]
        if v is None:
            return None
        if not isinstance(v, list | tuple) or any(isinstance(i, bool) or not isinstance(i, int) for i in v):
            raise SpecError(f"{self.name}: config field '{names[0]}' must be a list of layer numbers, not {v!r}")
        return tuple(v)

    def per_layer(self, *names: str, layer: int, default: Any = None) -> Any:
        """A field that is one value for all layers, or a list with one value per layer."""
        v = self.get(*names, default=default)
        if not isinstance(v, list | tuple):
            return v
        if layer >= len(v):
            raise SpecError(f"{self.name}: config field '{names[0]}' lists {len(v)} layers, but layer {layer + 1} is asked for")
        return v[layer]

    def note(self, text: str) -> None:
        """Record an assumption; it is shown with every answer about this model."""
        self.notes[text] = None

    @property
    def model_type(self) -> str:
        return str(self.raw("model_type") or "")

    @property
    def architectures(self) -> tuple[str, ...]:
        """Class names the config lists, empty when it lists none."""
        v = self.raw("architectures")
        return tuple(str(a) for a in v) if isinstance(v, list | tuple) else ()

    def unread(self) -> tuple[str, ...]:
        """Fields with a value that nothing has read yet."""
        return tuple(sorted(k for k, v in self._fields.items() if k not in self.read and v is not None))
