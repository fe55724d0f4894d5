"""What a plan's document must hold for it to be read: keys and kinds, down to the last one that is relied on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from autoparallel_core.errors import SpecError


@frozen
class MapOf:
    """Any keys, values of one shape."""

    value: Any


@frozen
class MaybeNone:
    """The shape, or null."""

    value: Any


@frozen
class Anything:
    """Read by the plugin alone."""


NUMBER = (int, float)
_PLACED = [str]
_FIGURES = MapOf(NUMBER)
SHAPE: Mapping[str, Any] = {
    "made_by": MapOf(str),
    "module": {"class": str, "fingerprint": {"digest": str, "modules": MapOf([Anything()]), "tensors": MapOf([Anything()])}},
    "mesh": {"names": [str], "sizes": [int]},
    "cluster": {"gpu": str, "n_gpus": int, "gpus_per_node": int, "memory_bytes": NUMBER},
    "inputs": MapOf({"shape": [int], "dtype": str, "placement": str}),
    "structure": Anything(),
    "parameters": MapOf(
        {"shape": [int], "dtype": str, "placement": str, "bytes": NUMBER, "local_bytes": NUMBER, "trained": bool}
    ),
    "operators": [
        {
            "slot": int, "name": str, "op": str, "phase": str, "copies": int, "rules": str, "out": _PLACED, "in": _PLACED,
            "shape": [MaybeNone([int])], "seconds": _FIGURES, "recomputed": bool, "options": int,
            "alternatives": [
                {"out": _PLACED, "in": _PLACED, "adds_s": NUMBER, "because": [{"slot": int, "kind": str, "adds_s": NUMBER}]}
            ],
        }
    ],
    "hubs": [{"slot": int, "kind": str, "of": str, "output": int, "phase": str, "placement": str, "copies": int}],
    "edges": [{"from": int, "to": int, "kind": str, "seconds": NUMBER, "given": str, "taken": str}],
    "collectives": [
        {
            "kind": str, "mesh_dim": str, "ranks": int, "bytes": NUMBER, "dtype": str, "from": str, "to": str, "for": str,
            "gradient_of": MaybeNone(str), "phase": str, "cause": str, "seconds": NUMBER,
        }
    ],
    "recompute": [str],
    "cost": dict.fromkeys(("step_s", "compute_s", "exchange_s", "weights_s", "update_s", "hidden_s"), NUMBER),
    "memory": {
        "peak_bytes": NUMBER, "peak_at": str, "by_cause": _FIGURES, "limit_bytes": NUMBER, "timeline": [[NUMBER]],
        "timeline_by_cause": MapOf([NUMBER]), "forward_steps": int,
    },
    "constraints": {"pins": MapOf(str), "memory_limit_bytes": NUMBER, "optimizer_bytes_per_parameter": NUMBER},
    "search": {"bound_s": NUMBER, "gap": NUMBER, "exact": bool, "programs": int, "slots": int, "options": int},
    "regions": MapOf([str]),
    "unruled": [{"name": str, "op": str, "copies": int, "seconds": NUMBER}],
    "notes": [str],
    "constants": Anything(),
    "program": {"steps": [{"op": str, "name": str, "s": NUMBER, "kind": str, "phase": int, "outs": [int]}]},
}  # fmt: skip


def check_shape(document: Mapping[str, Any], where: str) -> None:
    """Raise SpecError, with the path of the first key that is missing or of another kind."""
    _check(document, SHAPE, "", where)
    slots = {o["slot"] for o in (*document["operators"], *document["hubs"])}
    for i, e in enumerate(document["edges"]):
        for side in ("from", "to"):
            if e[side] not in slots:
                raise SpecError(f"{where}: edges[{i}].{side} is slot {e[side]}, which no operator or hub has")


def _check(value: Any, shape: Any, path: str, where: str) -> None:
    if isinstance(shape, Anything):
        return
    if isinstance(shape, MaybeNone):
        if value is not None:
            _check(value, shape.value, path, where)
    elif isinstance(shape, (MapOf, Mapping)):
        if not isinstance(value, Mapping):
            raise SpecError(f"{where}: {path or 'it'} must be an object, not {_kind(value)}")
        if isinstance(shape, MapOf):
            for key, v in value.items():
                _check(v, shape.value, f"{path}.{key}".lstrip("."), where)
            return
        for key, wanted in shape.items():
            inner = f"{path}.{key}".lstrip(".")
            if key not in value:
                raise SpecError(f"{where}: lacks {inner}")
            _check(value[key], wanted, inner, where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise SpecError(f"{where}: {path} must be a list, not {_kind(value)}")
        for i, v in enumerate(value):
            _check(v, shape[0], f"{path}[{i}]", where)
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        names = " or ".join(k.__name__ for k in (shape if isinstance(shape, tuple) else (shape,)))
        raise SpecError(f"{where}: {path} must be {names}, not {_kind(value)}")


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
