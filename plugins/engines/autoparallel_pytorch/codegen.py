"""A program as Python source: two plain functions of local tensors, readable and ready for torch.compile."""

from __future__ import annotations

from typing import Any

from autoparallel_pytorch.graph import BACKWARD, FORWARD, Dtype
from autoparallel_pytorch.local_ops import LOCAL
from autoparallel_pytorch.program import Length, Offset, Program, Step, Value

HEADER = '''"""Written from a plan: the forward and backward of one rank, on local tensors.

``mesh_`` gives the collectives (autoparallel_pytorch.collectives), ``batch`` is the size of the whole batch.
"""

import torch
from autoparallel_pytorch import local_ops
from torch import float16, float32, float64, bfloat16, int32, int64, int8, uint8

aten = torch.ops.aten

'''


def source(program: Program) -> str:
    """The module text: ``forward(mesh_, batch, device, seed, *given)`` → results and saved, ``backward(…, *saved, *grads)``.

    ``given`` are parameters, buffers, inputs and constants in the program's order.
    """
    return HEADER + _function("forward", program, FORWARD) + "\n\n" + _function("backward", program, BACKWARD)


def given(program: Program) -> list[int]:
    """Values that the forward takes, in order."""
    tables = (program.parameters, program.buffers, program.inputs, program.constants)
    return [v for t in tables for v in t.values()]


def _function(name: str, program: Program, phase: int) -> str:
    saved = program.saved()
    steps = [s for s in program.steps if s.phase == phase]
    if phase == FORWARD:
        takes, gives = given(program), [*program.outputs, *saved]
    else:
        takes = [*saved, *(t for t in program.tangents if t is not None)]
        gives = program.gives()
    last = {v: i for i, s in enumerate(steps) for v in s.reads()}
    keep = set(gives)
    lines = [f"def {name}(mesh_, batch, device, seed, {', '.join(f'v{v}' for v in dict.fromkeys(takes))}):"]
    if not takes:
        lines = [f"def {name}(mesh_, batch, device, seed):"]
    for i, step in enumerate(steps):
        outs = ", ".join("_" if v < 0 else f"v{v}" for v in step.outs)
        lines.append(f"    {outs} = {_call(step, program)}")
        done = [v for v in dict.fromkeys(step.reads()) if last[v] == i and v not in keep]
        done += [v for v in step.outs if v >= 0 and v not in last and v not in keep]
        if done:
            lines.append(f"    del {', '.join(f'v{v}' for v in done)}")
    lines.append(f"    return ({', '.join(f'v{v}' for v in gives)}{',' if gives else ''})")
    return "\n".join(lines) + "\n"


def _call(step: Step, program: Program) -> str:
    args = [_text(a) for a in step.args]
    kwargs = [f"{k}={_text(v)}" for k, v in step.kwargs.items()]
    if step.move:
        return f"mesh_.{step.op.removeprefix('move.')}({', '.join(args)})"
    if step.op == "autoparallel.dropout":
        args[2] = f"seed + {args[2]}"
    if step.op in LOCAL:
        return f"local_ops.{step.op.removeprefix('autoparallel.')}({', '.join(args + kwargs)})"
    if not any(True for _ in step.reads()):
        kwargs.append("device=device")
    name = "aten.reshape.default" if step.op == "aten.view.default" else step.op
    name = name if name.startswith("aten.") else f"torch.ops.{name}"
    del program
    return f"{name}({', '.join(args + kwargs)})"


def _text(value: Any) -> str:
    if isinstance(value, Value):
        return f"v{value.id}"
    if isinstance(value, Dtype):
        return value.name if value.name != "bool" else "torch.bool"
    if isinstance(value, Length):
        if not value.per_batch:
            return str(value.fixed // value.pieces)
        total = f"{value.per_batch} * batch" if not value.fixed else f"({value.per_batch} * batch + {value.fixed})"
        return total if value.pieces == 1 else f"{total} // {value.pieces}"
    if isinstance(value, Offset):
        return f"mesh_.offset({value.mesh_dims!r}, {_text(value.length)})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(v) for v in value)}]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f"float('{value}')"
    return repr(value)
