"""Programs as plain JSON data and back.

Arguments: numbers, strings, booleans, None and lists stand for themselves; ``{"v": id}`` a value, ``{"dtype": name}``,
``{"len": [fixed, per_batch, pieces]}``, ``{"at": [mesh dims, [fixed, per_batch, pieces]]}``, ``{"float": "inf"}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.graph import Dtype
from autoparallel_pytorch.placement import parse, text
from autoparallel_pytorch.program import Info, Length, Offset, Program, Step, Value


def dump(program: Program, names: Sequence[str]) -> dict[str, Any]:
    """``names`` are those of the graph's nodes, for steps to say what they compute."""
    return {
        "batch": program.batch,
        "parameters": program.parameters,
        "buffers": program.buffers,
        "inputs": program.inputs,
        "constants": program.constants,
        "tangents": program.tangents,
        "outputs": program.outputs,
        "gradients": program.gradients,
        **({"input_gradients": program.input_gradients} if program.input_gradients else {}),
        "values": [[list(i.shape), i.dtype, text(i.placements), i.alias, i.stored] for i in program.values],
        "steps": [
            {
                "op": s.op,
                "args": [_data(a) for a in s.args],
                **({"kwargs": {k: _data(v) for k, v in s.kwargs.items()}} if s.kwargs else {}),
                "outs": list(s.outs),
                "phase": s.phase,
                "node": s.node,
                "name": names[s.node],
                "s": s.seconds,
                "kind": s.kind,
                **({"again": True} if s.recomputed else {}),
            }
            for s in program.steps
        ],
    }


def load(data: Mapping[str, Any], n_dims: int) -> Program:
    """The inverse of :func:`dump`. Raises SpecError when the data is no program."""
    try:
        values = [Info(tuple(v[0]), v[1], parse(v[2], n_dims), v[3], v[4]) for v in data["values"]]
        steps = [
            Step(
                s["op"],
                tuple(_value(a) for a in s["args"]),
                {k: _value(v) for k, v in s.get("kwargs", {}).items()},
                tuple(s["outs"]),
                s["phase"],
                s["node"],
                s["s"],
                s["kind"],
                s.get("again", False),
            )
            for s in data["steps"]
        ]
        return Program(
            steps,
            values,
            dict(data["parameters"]),
            dict(data["buffers"]),
            dict(data["inputs"]),
            dict(data["constants"]),
            list(data["tangents"]),
            list(data["outputs"]),
            dict(data["gradients"]),
            data["batch"],
            dict(data.get("input_gradients", {})),
        )
    except (KeyError, IndexError, TypeError) as e:
        raise SpecError(f"the plan's program is damaged: {type(e).__name__} {e}") from e


def _data(value: Any) -> Any:
    if isinstance(value, Value):
        return {"v": value.id}
    if isinstance(value, Dtype):
        return {"dtype": value.name}
    if isinstance(value, Length):
        return {"len": list(value)}
    if isinstance(value, Offset):
        return {"at": [list(value.mesh_dims), list(value.length)]}
    if isinstance(value, (tuple, list)):
        return [_data(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_value(v) for v in data)
    if not isinstance(data, dict):
        return data
    ((kind, inner),) = data.items()
    if kind == "v":
        return Value(inner)
    if kind == "dtype":
        return Dtype(inner)
    if kind == "len":
        return Length(*inner)
    if kind == "at":
        return Offset(tuple(inner[0]), Length(*inner[1]))
    if kind == "float":
        return float(inner)
    raise SpecError(f"the plan's program has an argument of unknown kind '{kind}'")
