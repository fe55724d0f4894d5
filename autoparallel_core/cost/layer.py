"""What one layer costs a training step: seconds by cause, bytes kept, parameters, on unique layer keys.

Each operator kind has one pricing function (:mod:`autoparallel_core.cost.operator_costs`); a layer is the sum over its
operators. Axis legend: U unique layer keys, K causes (:data:`CAUSES`).
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.layer_sum import CAUSES, LayerSum
from autoparallel_core.cost.operator_costs import PRICE, launches
from autoparallel_core.cost.recompute import Recompute
from autoparallel_core.ops.mesh import Mesh
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.op import Elementwise

Array = NDArray[np.float64]

__all__ = ["CAUSES", "LayerCost", "layer_cost", "parameters"]


@frozen(eq=False)
class LayerCost:
    """Costs of one layer for one micro-batch on one rank."""

    forward: Array
    """Seconds, [U, K]."""
    backward: Array
    """Seconds, [U, K]."""
    selective: Array
    """Seconds of the extra forward under selective recompute, [U]."""
    saved: Array
    """Bytes kept for backward without recompute, [U]."""
    saved_selective: Array
    saved_full: Array
    live: Array
    """Bytes of the layer that is being recomputed, [U]: what full recompute has live at once."""
    dense_params: Array
    """Parameters on one rank outside the routed experts, [U]."""
    expert_params: Array
    """Parameters on one rank of the routed experts, [U]."""
    largest_matrix: Array
    """Elements of the largest local matrix, [U]."""
    launches: Array
    """Operators that the host launches in one forward pass, [U]."""
    weight_grad: Array
    """Seconds of the backward that only weight gradients take, [U]."""

    @property
    def forward_s(self) -> Array:
        return np.asarray(self.forward.sum(axis=1))

    @property
    def backward_s(self) -> Array:
        return np.asarray(self.backward.sum(axis=1))


def layer_cost(blocks: tuple[Block, ...], mesh: Mesh, hw: TrainingHardware, recompute: Recompute) -> LayerCost:
    """Sum the operators of ``blocks``."""
    u = len(mesh)
    total = LayerSum(
        mesh, hw, recompute, np.zeros((u, len(CAUSES))), np.zeros((u, len(CAUSES))), np.zeros(u), np.zeros(u), np.zeros(u),
        np.zeros(u), np.zeros(u),
    )  # fmt: skip
    for block in blocks:
        total.gathered.clear()
        for op in block.ops:
            before = total.forward.sum(axis=1)
            if price := PRICE.get(op.kind):
                total.launches += launches(op, mesh, low=hw.low_precision)
                price(total, block, op)
            share = recompute.share(op, block)
            if share:
                total.selective += share * (total.forward.sum(axis=1) - before)
    dense, expert, largest = parameters(blocks, mesh)
    residual = blocks[0].ops[0].reads[0] if blocks and isinstance(blocks[0].ops[0], Elementwise) else None
    boundary = mesh.resident_tokens * (residual.size if residual else 0) * 2.0
    return LayerCost(
        forward=total.forward,
        backward=total.backward,
        selective=total.selective,
        saved=total.saved,
        saved_selective=total.saved_selective,
        saved_full=boundary,
        live=total.saved,
        dense_params=dense,
        expert_params=expert,
        largest_matrix=largest,
        launches=total.launches,
        weight_grad=total.weight_grad,
    )


def parameters(blocks: tuple[Block, ...], mesh: Mesh) -> tuple[Array, Array, Array]:
    """Local parameters: (outside the routed experts, of the routed experts, of the largest matrix), [U] each."""
    dense, expert, largest = np.zeros(len(mesh)), np.zeros(len(mesh)), np.zeros(len(mesh))
    for block in blocks:
        for weight in block.weights():
            n = np.ones(len(mesh))
            for axis in weight.axes:
                n = n * mesh.local(axis)
            if any(a.name == "experts" for a in weight.axes):
                expert += n
            else:
                dense += n
            largest = np.maximum(largest, n)
    return dense, expert, largest
