"""Nested results and arguments: leaves out, structure as plain data, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from attrs import frozen

from autoparallel_core.errors import SpecError


@frozen
class Structure:
    """``kind`` is leaf, tuple, list, dict or record; ``keys`` name the children of dicts and records."""

    kind: str
    keys: tuple[str, ...] = ()
    children: tuple[Structure, ...] = ()
    type_name: str = ""
    """``module:Class`` of a record (a dataclass or a named tuple)."""

    def paths(self, prefix: str = "") -> list[str]:
        """A readable name per leaf: ``mask``, ``states.0.hidden``."""
        if self.kind == "leaf":
            return [prefix or "output"]
        names = self.keys or tuple(str(i) for i in range(len(self.children)))
        return [p for n, c in zip(names, self.children, strict=True) for p in c.paths(f"{prefix}.{n}" if prefix else n)]

    def build(self, leaves: Sequence[Any]) -> Any:
        """The nested value. Raises SpecError when a record's class is gone."""
        value, rest = self._build(list(leaves))
        assert not rest, "one leaf per place"
        return value

    def _build(self, leaves: list[Any]) -> tuple[Any, list[Any]]:
        if self.kind == "leaf":
            return leaves[0], leaves[1:]
        values = []
        for c in self.children:
            value, leaves = c._build(leaves)
            values.append(value)
        if self.kind == "tuple":
            return tuple(values), leaves
        if self.kind == "list":
            return values, leaves
        named = dict(zip(self.keys, values, strict=True))
        if self.kind == "dict":
            return named, leaves
        return _class(self.type_name)(**named), leaves

    def document(self, values: Sequence[Any], tensors: Sequence[bool]) -> Any:
        """Plain data for JSON: leaves are ``{"tensor": i}`` or ``{"value": x}``."""
        found, _ = self._document(list(zip(values, tensors, strict=True)))
        return found

    def _document(self, leaves: list[tuple[Any, bool]]) -> tuple[Any, list[tuple[Any, bool]]]:
        if self.kind == "leaf":
            value, tensor = leaves[0]
            return {"tensor": value} if tensor else {"value": value}, leaves[1:]
        children = []
        for c in self.children:
            child, leaves = c._document(leaves)
            children.append(child)
        out: dict[str, Any] = {"kind": self.kind, "children": children}
        if self.keys:
            out["keys"] = list(self.keys)
        if self.type_name:
            out["type"] = self.type_name
        return out, leaves


def from_document(data: Any) -> tuple[Structure, list[Any]]:
    """A structure and its leaves as :meth:`Structure.document` wrote them."""
    if "kind" not in data:
        return Structure("leaf"), [data]
    children, leaves = [], []
    for child in data["children"]:
        structure, found = from_document(child)
        children.append(structure)
        leaves += found
    return Structure(data["kind"], tuple(data.get("keys", ())), tuple(children), data.get("type", "")), leaves


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """Leaves in order, and how they nest."""
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        parts = [flatten(v) for v in value]
        kind = "list" if isinstance(value, list) else "tuple"
        return [x for leaves, _ in parts for x in leaves], Structure(kind, (), tuple(s for _, s in parts))
    named = _named(value)
    if named is None:
        return [value], Structure("leaf")
    parts = [flatten(v) for v in named.values()]
    plain = type(value) is dict
    name = "" if plain else f"{type(value).__module__}:{type(value).__qualname__}"
    structure = Structure("dict" if plain else "record", tuple(named), tuple(s for _, s in parts), name)
    return [x for leaves, _ in parts for x in leaves], structure


def _named(value: Any) -> dict[str, Any] | None:
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        return {k: v for k, v in given.items() if v is not None}
    if hasattr(value, "_fields") and isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]  # a named tuple
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return dict(value)
    return None


def _class(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as e:
        raise SpecError(f"the result's type {name} cannot be imported: {e}") from e
    return found
