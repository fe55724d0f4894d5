"""Local shapes when serving: one instance is tp·attn_dp·pp GPUs, experts are spread over all of a stage's tp·attn_dp.

Axis legend: K layer keys (distinct values of the columns that decide a layer's shape).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.spec.op import Axis, Weight
from autoparallel_core.spec.serving import Alignment, ServingPolicy

if TYPE_CHECKING:
    from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]

KEYS = ("tp", "attn_dp", "ep")
"""Columns on which the weights and the cache of one layer depend."""


def with_expert_tp(batch: StrategyBatch) -> StrategyBatch:
    """The batch with ``etp`` set to what tp·attn_dp leaves after ep (1 where ep does not divide it)."""
    ranks = batch.tp * batch.attn_dp
    return batch.replace(etp=np.where(ranks % batch.ep == 0, np.maximum(ranks // batch.ep, 1), 1))


@frozen(eq=False)
class ServingMesh:
    """K layer keys as arrays; ``etp`` is what remains of the stage's ranks after ep."""

    tp: Array
    attn_dp: Array
    ep: Array
    policy: ServingPolicy
    architecture: str = ""

    @classmethod
    def of(cls, batch: StrategyBatch, policy: ServingPolicy, architecture: str = "") -> ServingMesh:
        tp, attn_dp, ep = (batch.columns[k].astype(np.float64) for k in KEYS)
        return cls(tp, attn_dp, ep, policy, architecture.lower())

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def etp(self) -> Array:
        return np.maximum(self.tp * self.attn_dp / self.ep, 1.0)

    def degree(self, axis: Axis, component: str) -> Array:
        """Ranks over which an axis of a weight of this component is spread."""
        if axis.name == "experts":
            return self.ep
        if axis.name == "expert_ffn":
            return self.etp
        if axis.name in ("heads", "kv_heads", "ffn", "vocab"):
            return self.tp * self.attn_dp if component in self.policy.spread_over_attention_dp else self.tp
        return np.ones(len(self))

    def local(self, axis: Axis, component: str = "attention") -> Array:
        """Elements of the axis on one rank. kv_heads replicate, the vocabulary is padded, uneven splits take the largest part."""
        d = self.degree(axis, component)
        units = np.full(len(self), float(axis.units))
        if axis.name == "vocab":
            pad = float(self.policy.pad_vocabulary_to)
            padded = np.ceil(units / pad) * pad
            units = np.where(padded % d == 0, padded, np.ceil(units / (pad * d)) * pad * d)
        elif axis.name in ("ffn", "expert_ffn") and axis.width == 1:
            return units / d  # uneven widths are a matter of the legality rules
        return np.maximum(1.0, np.ceil(units / d)) * axis.width

    def weight_elements(self, weight: Weight, fmt: str, *, experts: bool) -> Array:
        """Elements that one rank stores of a weight, with the paddings of the kernel that reads this format."""
        total = np.ones(len(self))
        last = len(weight.axes) - 1
        for i, axis in enumerate(weight.axes):
            size = self.local(axis, weight.component)
            if weight.linear and axis.name != "experts":
                side = "out" if i == last else "in"
                for a in self.policy.alignments:
                    if self._concerns(a, fmt, axis, side, experts=experts):
                        size = np.ceil(size / a.multiple) * a.multiple
            total = total * size
        return total

    def _concerns(self, a: Alignment, fmt: str, axis: Axis, side: str, *, experts: bool) -> bool:
        return (
            a.format == fmt
            and (experts or not a.experts_only)
            and (a.axis is None or a.axis == axis.name)
            and (a.side is None or a.side == side)
            and (not a.architectures or self.architecture in a.architectures)
        )
