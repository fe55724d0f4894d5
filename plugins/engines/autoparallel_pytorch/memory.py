"""Bytes on one GPU over the steps of a program: what is alive when, by cause.

Parameters, buffers, inputs and optimizer state are there all the time, a gradient from the step that makes it, any other
tensor from its step to the last one that reads it or a view of it. Results that live inside of a fused kernel take none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_pytorch.program import Program

Array = NDArray[np.float64]
CAUSES = ("parameters", "optimizer", "gradients", "inputs", "saved", "temporary")
"""``saved``: made in the forward and read in the backward."""


@frozen(eq=False)
class Timeline:
    """Bytes after each step (``live``, float64[steps]) and at their highest."""

    live: Array
    peak_bytes: float
    peak_step: int
    by_cause: Mapping[str, float]
    """At the peak; sums to it."""
    over_time: Mapping[str, Array]
    """After each step, by cause; sums to ``live``."""


def timeline(program: Program, *, optimizer_bytes: float, in_flight: int = 1, accumulates: bool = False) -> Timeline:
    """``optimizer_bytes`` is the state per parameter; ``in_flight`` micro-batches keep what their backward reads.

    When gradients of several micro-batches accumulate, their sums are there all the time.
    """
    values, steps = program.values, program.steps
    n = len(steps)
    root = list(range(len(values)))
    for v, info in enumerate(values):
        if info.alias is not None:
            root[v] = root[info.alias]
    born = {v: -1 for table in (program.parameters, program.buffers, program.inputs, program.constants) for v in table.values()}
    always = {root[v] for v in born}
    born |= dict.fromkeys((t for t in program.tangents if t is not None), program.n_forward)
    last: dict[int, int] = {}
    for i, step in enumerate(steps):
        for v in step.outs:
            if v >= 0 and values[v].alias is None:
                born[v] = i
        for v in step.reads():
            last[root[v]] = i
    ends = {root[v] for v in program.outputs}
    grads = {root[v] for v in program.gives()}
    parameters, given = set(program.parameters.values()), set(program.inputs.values())
    summed = {root[v] for v in program.gradients.values() if v is not None}
    forward = program.n_forward
    deltas = {cause: np.zeros(n + 1) for cause in CAUSES}
    trained = [program.parameters[p] for p, g in program.gradients.items() if g is not None]
    state = sum(optimizer_bytes * _elements(values[v].shape) for v in trained)
    deltas["optimizer"][0] += state
    for v, start in born.items():
        info = values[v]
        if root[v] != v or not info.stored:
            continue
        if v in always:
            copies = in_flight if v in given else 1
            deltas["parameters" if v in parameters else "inputs"][0] += copies * info.bytes
            continue
        end = last.get(v, start)
        if v in ends:
            end = max(end, forward)
        if v in grads:
            deltas["gradients"][max(start, 0)] += info.bytes
            if accumulates and v in summed:
                deltas["gradients"][0] += info.bytes
            continue
        cause = "saved" if start < forward <= end else "temporary"
        deltas[cause][max(start, 0)] += info.bytes
        if cause == "saved":
            deltas[cause][0] += (in_flight - 1) * info.bytes
        if end + 1 <= n:
            deltas[cause][end + 1] -= info.bytes
    by_cause = {cause: np.cumsum(d)[:n] for cause, d in deltas.items()}
    live = sum(by_cause.values(), np.zeros(n))
    if not n:
        return Timeline(live, state, 0, dict.fromkeys(CAUSES, 0.0) | {"optimizer": state}, by_cause)
    at = int(np.argmax(live))
    return Timeline(live, float(live[at]), at, {cause: float(b[at]) for cause, b in by_cause.items()}, by_cause)


def _elements(shape: tuple[int, ...]) -> int:
    n = 1
    for s in shape:
        n *= s
    return n
