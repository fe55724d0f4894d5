"""The core's own constants, read from ``constants.toml`` with their meaning and origin."""

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
    text = files("autoparallel_core.cost").joinpath("constants.toml").read_text(encoding="utf-8")
    return MappingProxyType({name: structure(body, Constant) for name, body in tomllib.loads(text).items()})
