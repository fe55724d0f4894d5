"""The core's own constants, read from ``constants.toml`` and ``serving_constants.toml`` with their meaning and origin."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

from cattrs import structure

from autoparallel_core.spec.problem import Constant

if TYPE_CHECKING:
    from collections.abc import Mapping


@cache
def core_constants() -> Mapping[str, Constant]:
    """Name → constant; engines override by name."""
    found: dict[str, Constant] = {}
    for file in ("constants.toml", "serving_constants.toml"):
        text = files("autoparallel_core.cost").joinpath(file).read_text(encoding="utf-8")
        found |= {name: structure(body, Constant) for name, body in tomllib.loads(text).items()}
    return MappingProxyType(found)
