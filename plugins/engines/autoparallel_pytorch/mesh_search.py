"""The shape of the mesh, when it is free: every shape is bounded, those that can still win are searched.

One module is traced once. Meshes of one and two dimensions come first, the last dimension inside of a node or across nodes.
A solution without a memory limit bounds every plan on a mesh, at a tenth of the price of a search; meshes are searched in
the order of their bounds until the next bound is no less than the best step. The best mesh of two dimensions is then cut
once more (hybrid sharding: parameters on part of the data-parallel ranks, an innermost part inside of nodes). A dimension
more must gain more than a prediction can tell apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from autoparallel_core.errors import Infeasible
from autoparallel_core.search.result import TIE
from autoparallel_core.spec.module_plan import ModuleRequest
from autoparallel_pytorch.graph import Graph
from autoparallel_pytorch.machine import default_names
from autoparallel_pytorch.rules import Rules

if TYPE_CHECKING:
    from autoparallel_pytorch.planner import Found, Planning

Shape = tuple[int, ...]


def meshes(n_gpus: int) -> list[Shape]:
    """The shape of one dimension and those of two, outermost first."""
    return [(n_gpus,), *((n_gpus // t, t) for t in range(2, n_gpus // 2 + 1) if n_gpus % t == 0)]


def refined(shape: Shape, gpus_per_node: int) -> list[Shape]:
    """The shapes of three dimensions that cut one of two dimensions where a node or a pair of GPUs ends."""
    if len(shape) != 2:
        return []
    outer, inner = shape
    middles = sorted({gpus_per_node // inner, gpus_per_node, outer // 2, 2})
    return [(outer // middle, middle, inner) for middle in middles if 1 < middle < outer and outer % middle == 0]


@define(eq=False)
class MeshSearch:
    """All shapes of one question."""

    graph: Graph
    request: ModuleRequest
    started: float = field(factory=time.perf_counter)
    best: tuple[Planning, Found, float] | None = None
    said: list[str] = field(factory=list)
    """One sentence per shape."""
    _rules: Rules = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._rules = Rules(self.request.options.get("rules"))

    def run(self) -> tuple[Planning, Found]:
        """Raises Infeasible when no shape holds a plan that fits."""
        n, node = self.request.cluster.n_gpus, self.request.cluster.gpus_per_node
        words = {len(pin.replace(",", " ").split()) for pin in self.request.pins.values()}
        first = [s for s in meshes(n) if not words or len(s) in words]
        self._try(first or [cut for s in meshes(n) for cut in refined(s, node)])
        if self.best is not None and not words:
            self._try(refined(self.best[0].machine.mesh.sizes, node))
        if self.best is None:
            raise Infeasible(f"no mesh of {self.request.cluster.n_gpus} GPUs holds a plan that fits: {self.said[0]}")
        return self.best[0], self.best[1]

    def _try(self, shapes: Sequence[Shape]) -> None:
        opened = []
        for shape in shapes:
            planning = self._planning(shape)
            try:
                opened.append((planning.bound_s(), planning))
            except Infeasible as e:
                self.said.append(f"{planning.machine.mesh}: {e}")
        for bound, planning in sorted(opened, key=lambda x: x[0]):
            mesh = planning.machine.mesh
            if bound >= self._to_beat(mesh.sizes):
                self.said.append(f"{mesh}: not below {bound:.4g} s")
                continue
            left = self.request.time_limit_s - (time.perf_counter() - self.started)
            if self.best is not None and left <= 0:
                self.said.append(f"{mesh}: not searched in time, not below {bound:.4g} s")
                continue
            try:
                outcome = planning.outcome()
            except Infeasible as e:
                self.said.append(f"{mesh}: {e}")
                continue
            if outcome.bound_s >= self._to_beat(mesh.sizes):
                self.said.append(f"{mesh}: not below {outcome.bound_s:.4g} s")
                continue
            found = planning.finished(outcome)
            step = planning.objective.step_s(found.seconds)
            self.said.append(f"{mesh}: {step:.4g} s")
            if step < self._to_beat(mesh.sizes):
                self.best = planning, found, step

    def _to_beat(self, shape: Shape) -> float:
        """Seconds below which a plan on the shape is the better one: of equals, that of fewer dimensions."""
        if self.best is None:
            return math.inf
        more = len(shape) - len(self.best[0].machine.mesh.sizes)
        return self.best[2] * (1 - TIE if more > 0 else 1 + TIE if more < 0 else 1)

    def _planning(self, shape: Shape) -> Planning:
        from autoparallel_pytorch.planner import Planning

        request = evolve(self.request, mesh_names=default_names(shape), mesh_sizes=shape)
        return Planning.of(self.graph, request, self._rules)
