"""Local shapes: how many tokens and elements one rank holds when mesh dimensions are assigned to axis names.

The usual assignment is one fixed table (tensor and pipeline parallelism: Narayanan et al., arXiv 2104.04473, section 3;
sequence parallelism: Korthikanti et al., arXiv 2205.05198, section 4.2.2; expert folding: the second grid
``etp·ep`` over the same ranks). Axis legend: U unique layer keys.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.spec.op import Axis
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]

ASSIGNMENT: dict[str, str] = {
    "heads": "tp",
    "kv_heads": "tp",
    "ffn": "tp",
    "vocab": "tp",
    "experts": "ep",
    "expert_ffn": "etp",
}
"""Axis name → mesh dimension; names not listed are never sharded."""

KEYS = ("tp", "sp", "cp", "ep", "etp", "mbs")
"""Strategy columns on which the cost of one layer depends."""


@frozen(eq=False)
class Mesh:
    """U layer keys as arrays. ``tokens`` are those of one micro-batch on one rank before sequence parallelism."""

    tp: Array
    sp: Array
    cp: Array
    ep: Array
    etp: Array
    sequences: Array
    """Sequences per micro-batch."""
    seq_len: float

    @classmethod
    def of(cls, batch: StrategyBatch, seq_len: float) -> Mesh:
        """Arrays of the batch's rows; ``sp`` counts only where tp > 1."""
        f = {k: batch.columns[k].astype(np.float64) for k in KEYS}
        sp = np.where(f["tp"] > 1, f["sp"], 0.0)
        return cls(tp=f["tp"], sp=sp, cp=f["cp"], ep=f["ep"], etp=f["etp"], sequences=f["mbs"], seq_len=seq_len)

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def tokens(self) -> Array:
        return self.sequences * self.seq_len / self.cp

    @property
    def resident_tokens(self) -> Array:
        """Tokens of the residual stream on one rank: divided by tp under sequence parallelism."""
        return self.tokens / np.where(self.sp > 0, self.tp, 1.0)

    def routed_tokens(self, top_k: int) -> Array:
        """Token visits that one expert rank serves under balanced routing, etp-gathered."""
        return self.tokens * top_k * self.etp / self.tp

    def _dimension(self, name: str) -> Array:
        return {"tp": self.tp, "ep": self.ep, "etp": self.etp}[name]

    def degree(self, axis: Axis) -> Array:
        """Ranks over which the axis is spread, 1 where it is not sharded."""
        dim = ASSIGNMENT.get(axis.name)
        return self._dimension(dim) if dim else np.ones(len(self))

    def local(self, axis: Axis) -> Array:
        """Elements of the axis on one rank; kv_heads replicate, other uneven splits take the largest part."""
        dim = ASSIGNMENT.get(axis.name)
        if dim is None:
            return np.full(len(self), float(axis.size))
        return np.maximum(1.0, np.ceil(axis.units / self._dimension(dim))) * axis.width

    def sharded(self, axis: Axis) -> bool:
        return axis.name in ASSIGNMENT

    def rows(self, axis: Axis) -> Array:
        """Tokens over which an element-wise pass on this axis runs: resident ones unless the axis is sharded over tp."""
        return self.tokens if ASSIGNMENT.get(axis.name) == "tp" else self.resident_tokens
