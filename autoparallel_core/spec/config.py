"""A model's ``config.json`` as plugins see it: one flat view that remembers what was read.

The view holds the language model's fields (``text_config`` and the like already descended into) with the
top-level fields that belong to the whole model underneath. Reading through it is what makes an unread,
unknown field visible to the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.errors import SpecError

_MISSING = object()


class ConfigView:
    """Read access to a config's fields.

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

    def __contains__(self, field: str) -> bool:
        return self._fields.get(field) is not None

    def raw(self, field: str) -> Any:
        """The field as it stands (None when absent), counted as read."""
        self.read.add(field)
        return self._fields.get(field)

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of the aliases that is present and not null; all of them count as read."""
        self.read.update(names)
        for n in names:
            v = self._fields.get(n)
            if v is not None:
                return v
        return default

    def require(self, *names: str) -> Any:
        """As get, but raises SpecError naming the field when none is present."""
        v = self.get(*names, default=_MISSING)
        if v is _MISSING:
            raise SpecError(
                f"{self.name}: config field '{names[0]}' is missing"
                + (f" (also looked for {', '.join(names[1:])})" if names[1:] else "")
            )
        return v

    def size(self, *names: str, default: int | None = None) -> int:
        """A positive integer field. Raises SpecError when missing without default, not an integer, or < 1."""
        v = self.get(*names, default=default)
        if v is None:
            return int(self.require(*names))
        if isinstance(v, bool) or not isinstance(v, int) or v < 1:
            raise SpecError(f"{self.name}: config field '{names[0]}' must be a positive integer, not {v!r}")
        return v

    def count(self, *names: str, default: int = 0) -> int:
        """A non-negative integer field; null and absent give the default."""
        v = self.get(*names, default=default)
        if isinstance(v, bool) or not isinstance(v, int) or v < 0:
            raise SpecError(f"{self.name}: config field '{names[0]}' must be a whole number, not {v!r}")
        return v

    def flag(self, *names: str, default: bool = False) -> bool:
        v = self.get(*names, default=default)
        if not isinstance(v, bool | int):
            raise SpecError(f"{self.name}: config field '{names[0]}' must be true or false, not {v!r}")
        return bool(v)

    def note(self, text: str) -> None:
        """Record an assumption; it is shown with every answer about this model."""
        self.notes[text] = None

    @property
    def model_type(self) -> str:
        return str(self.get("model_type", default=""))

    def unread(self) -> tuple[str, ...]:
        """Fields with a value that nothing has read yet."""
        return tuple(sorted(k for k, v in self._fields.items() if k not in self.read and v is not None))
