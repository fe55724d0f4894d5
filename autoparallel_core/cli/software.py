"""``--software NAME=VALUE,…``: what the software stack does, as the fields of Software name it."""

from __future__ import annotations

import types
import typing
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any, Literal

from autoparallel_core.naming import did_you_mean
from autoparallel_core.spec.workload import Software

_SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
_INTERNAL = ("assumed", "own_tensor_parallel", "sharded_dispatch")
"""What an engine is, rather than what a user sets."""


def software_settings(text: str) -> Mapping[str, Any]:
    """Fields of Software by name; several modules are joined with ``+``. ``tp_overlap=on,recompute_modules=core_attn+mlp``."""
    kinds = {n: t for n, t in typing.get_type_hints(Software).items() if n not in _INTERNAL}
    out: dict[str, Any] = {}
    for part in text.split(","):
        name, eq, value = (x.strip() for x in part.partition("="))
        if not eq or not value:
            raise ArgumentTypeError(f"{part.strip()!r} is not NAME=VALUE; names: {', '.join(kinds)}")
        if name not in kinds:
            raise ArgumentTypeError(f"unknown software setting {name!r}; {did_you_mean(name, kinds)}")
        if name in out:
            raise ArgumentTypeError(f"{name} is given twice")
        out[name] = _value(name, value, kinds[name])
    return out


def written(settings: Mapping[str, Any]) -> str:
    """The settings as the flag reads them."""

    def one(value: Any) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        return "+".join(value) if isinstance(value, tuple) else str(value)

    return ",".join(f"{name}={one(value)}" for name, value in settings.items())


def _value(name: str, text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        known = typing.get_args(kind)
        if text not in known:
            raise ArgumentTypeError(f"{name} is one of {', '.join(known)}, not {text!r}")
        return text
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise ArgumentTypeError(f"{name} is on or off, not {text!r}")
        return _SWITCH[text.lower()]
    if typing.get_origin(kind) is tuple:
        return _modules(name, text)
    if isinstance(kind, types.UnionType):
        kind = next(t for t in typing.get_args(kind) if t is not types.NoneType)
    try:
        value = kind(text)
    except ValueError:
        raise ArgumentTypeError(f"{name} is a number, not {text!r}") from None
    if not isinstance(value, str) and value < 0:
        raise ArgumentTypeError(f"{name} must not be negative, not {text}")
    return value


def _modules(name: str, text: str) -> tuple[str, ...]:
    from autoparallel_core.cost.recompute import MODULES

    names = tuple(x.strip() for x in text.split("+"))
    for x in names:
        if x not in MODULES:
            raise ArgumentTypeError(f"{name}: unknown module {x!r}; {did_you_mean(x, MODULES)}")
    return names
