"""What every layer of a pipeline takes, and where that cuts it best.

A plan of the whole module on the inner mesh, without a limit on memory, prices every layer: its time for one micro-batch, its
parameters and what it keeps. The dynamic program of ``solve.stages`` cuts by these prices, with as many micro-batches in
flight as the schedule holds; a stage that keeps too much pays for computing it again.
Axis legend: L units of the chain; else as in ``solve.stages``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.errors import Infeasible
from autoparallel_core.solve.stages import StageProblem, plan_stages
from autoparallel_pytorch.formulate import KINDS
from autoparallel_pytorch.graph import FORWARD
from autoparallel_pytorch.pipeline_cut import Chain
from autoparallel_pytorch.pipeline_schedule import Pipelining
from autoparallel_pytorch.placement import Placements
from autoparallel_pytorch.planner import Planning
from autoparallel_pytorch.program import Program

Array = NDArray[np.float64]


@frozen(eq=False)
class Layered:
    """What every unit of a chain takes, by a plan of the whole without a limit on memory."""

    time_s: Array
    """Of one micro-batch, forward and backward, [L]."""
    forward_s: Array
    held_bytes: Array
    """Parameters, their gradients and state, [L]."""
    kept_bytes: Array
    """Of one micro-batch, [L]."""
    crossing: tuple[tuple[Placements, ...], ...]
    """Placements of what crosses, [L − 1]."""
    crossing_bytes: Array
    """Of one micro-batch on one GPU, [L − 1]."""

    @classmethod
    def of(cls, chain: Chain, planning: Planning) -> Layered:
        program = planning.free_program()
        graph, n = chain.graph, len(chain.units)
        unit = _units(chain)
        seconds = {k: np.zeros(n) for k in KINDS}
        forward = np.zeros(n)
        for step in program.steps:
            seconds[step.kind][unit[step.node]] += step.seconds
            if step.phase == FORWARD:
                forward[unit[step.node]] += step.seconds
        time = np.array([planning.objective.step_s({k: float(s[i]) for k, s in seconds.items()}) for i in range(n)])
        held, kept = np.zeros(n), _kept(program, unit, n)
        for name, v in program.parameters.items():
            info = program.values[v]
            trained = program.gradients.get(name) is not None
            width = info.bytes / max(1, int(np.prod(info.shape)))
            per_element = planning.settings.optimizer_bytes + width if trained else 0.0
            held[unit[graph.parameters[name]]] += info.bytes * (1.0 + per_element / width)
        crossing, sizes = [], np.zeros(n - 1)
        for i, cut in enumerate(chain.cuts):
            crossing.append(tuple(planning.crossing(t) for t in cut.tensors))
            for t, p in zip(cut.tensors, crossing[-1], strict=True):
                pieces = np.prod([s for q, s in zip(p, planning.machine.mesh.sizes, strict=True) if q >= 0])
                sizes[i] += graph.meta(t).bytes / float(pieces)
        return cls(time, forward, held, kept, tuple(crossing), sizes)

    def cut(self, pipe: Pipelining, limit_bytes: float) -> list[tuple[int, int]]:
        """First and last unit of every stage. Raises Infeasible when no cut fits, by these prices."""
        n, k = len(self.time_s), pipe.n_stages
        time = np.full((k, n, n, 1), np.inf)
        total = {x: np.concatenate([[0.0], np.cumsum(a)]) for x, a in self._arrays().items()}
        entering = np.concatenate([[0.0], self.crossing_bytes])
        limit = limit_bytes / pipe.per_rank
        for left in range(k):
            flight = pipe.in_flight(k - 1 - left)
            for i in range(n):
                for j in range(i, n):
                    t, f, held, kept = (total[x][j + 1] - total[x][i] for x in ("time", "forward", "held", "kept"))
                    # At the least, what enters every layer is kept; the rest can run again.
                    least = flight * float(entering[i : j + 1].sum())
                    over = held + flight * kept - limit
                    if over > 0:
                        spare = flight * kept - least
                        if over > spare:
                            continue
                        t += f * over / spare
                    time[left, i, j, 0] = t
        allowed = np.arange(1, k + 1) == k
        spread, repeat = pipe.weights()
        problem = StageProblem.of(
            time, np.zeros((1, 0), dtype=np.int64), np.zeros(0, dtype=np.int64),
            spread=np.full(k, spread), repeat=np.full(k, repeat), allowed=allowed,
        )  # fmt: skip
        best = plan_stages(problem).best
        if best is None:
            raise Infeasible(f"no cut into {k} stages fits in {limit_bytes / 1e9:.1f} GB; use more GPUs or smaller micro-batches")
        return [(s.first, s.last) for s in best.stages]

    def _arrays(self) -> dict[str, Array]:
        return {"time": self.time_s, "forward": self.forward_s, "held": self.held_bytes, "kept": self.kept_bytes}


def _units(chain: Chain) -> list[int]:
    """Unit per node; what is no part of the flow goes with the first node of the flow that needs it."""
    unit = list(chain.of)
    for node in reversed(chain.graph.nodes):
        if unit[node.id] >= 0:
            for ref in node.refs():
                if chain.of[ref.node] < 0:
                    unit[ref.node] = unit[node.id] if unit[ref.node] < 0 else min(unit[ref.node], unit[node.id])
    return [max(u, 0) for u in unit]


def _kept(program: Program, unit: Sequence[int], n: int) -> Array:
    """Bytes that one micro-batch keeps for the backward, by the unit that makes them."""
    outside = {v for t in (program.parameters, program.buffers, program.inputs, program.constants) for v in t.values()}
    maker = {v: step.node for step in program.steps for v in step.outs}
    kept = np.zeros(n)
    seen = set()
    for v in program.saved():
        root = v
        while (alias := program.values[root].alias) is not None:
            root = alias
        if root in seen or root in outside or not program.values[root].stored:
            continue
        seen.add(root)
        kept[unit[maker[root]]] += program.values[root].bytes
    return kept
