"""What accumulates while the operators of one layer are priced.

Axis legend: U unique layer keys, K causes (:data:`CAUSES`).
"""

from __future__ import annotations

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.recompute import Recompute
from autoparallel_core.ops.mesh import Mesh
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.op import Axis, Op

Array = NDArray[np.float64]

CAUSES = (
    "gemm",
    "expert_gemm",
    "attention",
    "scan",
    "elementwise",
    "cast",
    "embedding",
    "loss",
    "host",
    "tp_comm",
    "cp_comm",
    "ep_comm",
)
_K = {c: i for i, c in enumerate(CAUSES)}


@define(eq=False)
class LayerSum:
    """Accumulates one layer."""

    mesh: Mesh
    hw: TrainingHardware
    recompute: Recompute
    forward: Array
    backward: Array
    selective: Array
    saved: Array
    saved_selective: Array
    launches: Array
    weight_grad: Array
    gathered: set[tuple[Axis, str]] = field(factory=set)

    def add(self, cause: str, forward: Array, backward: Array) -> None:
        self.forward[:, _K[cause]] += forward
        self.backward[:, _K[cause]] += backward

    def keep(self, op: Op, block: Block, n_bytes: Array, *, what: str = "input") -> None:
        self.saved += n_bytes
        if not self.recompute.drops(op, block, what):
            self.saved_selective += n_bytes * self.recompute.kept_share
