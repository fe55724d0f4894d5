"""Weight traffic of one layer in one collective each way, as FSDP and DDP send it: the latency is paid once per bucket.

Gathers of parameters go to where the layer begins, as far as what they gather is there; reductions of gradients wait until
the layer's last one. Tensors of one bucket share the collective's kind, mesh dimension, type and layer, and are laid out behind
each other in one buffer, which costs a copy in and, for gathers, a copy out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import define, evolve, field

from autoparallel_pytorch.formulate import WEIGHTS
from autoparallel_pytorch.machine import Machine
from autoparallel_pytorch.placement import P
from autoparallel_pytorch.program import Program, Step, Value

GATHERS = frozenset({"move.all_gather"})
REDUCTIONS = frozenset({"move.all_reduce", "move.reduce_scatter"})

_Key = tuple[str, int, str, int, int, bool]
Needs = Callable[[Step], Iterable[int]]


def bucketed(program: Program, layer_of: Sequence[int], machine: Machine) -> None:
    """Collect the collectives of a program, in place. ``layer_of`` is per operator of the graph; −1 is outside of any layer."""
    late = _Collector(program, layer_of, machine, REDUCTIONS)
    steps = late.run(program.steps, lambda s: s.reads(), lambda s: s.outs)
    early = _Collector(program, layer_of, machine, GATHERS)
    # Backwards in time, so that waiting is moving forward.
    program.steps = early.run(steps[::-1], lambda s: s.outs, lambda s: s.reads())[::-1]


@define(eq=False)
class _Collector:
    program: Program
    layer_of: Sequence[int]
    machine: Machine
    ops: frozenset[str]
    out: list[Step] = field(factory=list)
    waiting: dict[_Key, list[Step]] = field(factory=dict)
    depth: dict[int, int] = field(factory=dict)
    """Value that waits → how many steps of its chain wait before it."""

    def run(self, steps: Iterable[Step], needs: Needs, gives: Needs) -> list[Step]:
        """The steps in the order given, with those of ``ops`` as late as possible within their layer."""
        at: tuple[int, int] | None = None
        for step in steps:
            here = (step.phase, self.layer_of[step.node])
            if here != at:
                self.flush()
                at = here
            below = [self.depth[v] for v in needs(step) if v in self.depth]
            if self._collects(step):
                depth = 1 + max(below, default=-1)
                value = self.program.values[next(step.reads())]
                key = (step.op, step.args[1], value.dtype, step.args[2] if step.args[2] <= P else 0, depth, step.recomputed)
                self.waiting.setdefault(key, []).append(step)
                self.depth |= dict.fromkeys(gives(step), depth)
                continue
            if below and self._follows(step):
                depth = 1 + max(below)
                self.waiting[step.op, -1 - step.outs[0], "", 0, depth, False] = [step]
                self.depth |= dict.fromkeys(gives(step), depth)
                continue
            if below:
                self.flush()
            self.out.append(step)
        self.flush()
        return self.out

    def _collects(self, step: Step) -> bool:
        return step.kind == WEIGHTS and step.op in self.ops and (step.op in GATHERS or step.args[2] == P)

    def _follows(self, step: Step) -> bool:
        """Views and cuts of what waits wait with it, and so does what else becomes of a reduced gradient."""
        if all(v >= 0 and self.program.values[v].alias is not None for v in step.outs) or step.op == "move.slice":
            return True
        return self.ops is REDUCTIONS and step.kind == WEIGHTS and step.move

    def flush(self) -> None:
        """Write what waits, the beginnings of chains first."""
        for key in sorted(self.waiting, key=lambda k: k[4]):
            self.out.append(self._one(self.waiting[key]))
        self.waiting, self.depth = {}, {}

    def _one(self, steps: list[Step]) -> Step:
        if len(steps) == 1:
            return steps[0]
        first = steps[0]
        m = first.args[1]
        values = tuple(v for s in steps for v in s.reads())
        args = (tuple(Value(v) for v in values), m, tuple(s.args[2] for s in steps), tuple(s.args[3] for s in steps))
        seconds = sum(s.seconds for s in steps) - (len(steps) - 1) * self.machine.latency_s(first.op.removeprefix("move."), m)
        outs = tuple(v for s in steps for v in s.outs)
        return evolve(first, args=args, outs=outs, seconds=seconds + self._copies_s(steps), members=tuple(steps))

    def _copies_s(self, steps: Sequence[Step]) -> float:
        """Into the buffer and out of it, read and written each; collectives along inner dimensions copy in any case."""
        n_bytes = 0.0
        for s in steps:
            before, after = self.program.values[next(s.reads())], self.program.values[s.outs[0]]
            inner = max(s.args[2], s.args[3]) > 0
            if s.op == "move.all_gather":
                n_bytes += before.bytes + (0 if inner else after.bytes)
            else:
                n_bytes += 0 if inner else before.bytes
        return float(self.machine.traffic_s(2.0 * n_bytes))
