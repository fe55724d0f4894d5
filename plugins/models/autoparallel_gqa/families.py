"""What model types imply beyond their config files, from the data table beside this module."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _table() -> dict[str, dict[str, Any]]:
    data = tomllib.loads((files(__package__) / "families.toml").read_text(encoding="utf-8"))
    table: dict[str, dict[str, Any]] = {}
    for entry in data["family"]:
        for model_type in entry["types"]:
            if model_type in table:
                raise ValueError(f"families.toml states '{model_type}' twice")
            table[model_type] = {
                "traits": {k: v for k, v in entry.items() if k not in {"types", "defaults"}},
                "defaults": entry.get("defaults", {}),
            }
    return table


def family(model_type: str) -> Mapping[str, Mapping[str, Any]] | None:
    """Traits and field defaults of a model type, None when the table has none."""
    found = _table().get(model_type) or _table().get(model_type.removesuffix("_text"))
    if found is None:
        return None
    return {"defaults": found["defaults"], "traits": {"standard": True, **found["traits"]}}
