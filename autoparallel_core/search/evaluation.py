"""Figures of many strategies, as arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.serving_memory import ServingMemory
from autoparallel_core.cost.training import TrainingBatch
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]


@frozen(eq=False)
class Evaluation:
    """Figures of S strategies."""

    batch: StrategyBatch
    seconds: Mapping[str, Array]
    """By cause; sums to ``total_s``."""
    total_s: Array
    tokens_per_s_per_gpu: Array
    """Training: tokens of the step. Inference: output tokens."""
    allocated_bytes: Array
    reserved_bytes: Array
    host_bytes_per_node: Array
    capacity_bytes: float
    fits: NDArray[np.bool_]
    tight: NDArray[np.bool_]
    memory: Mapping[str, Array] = field(factory=dict)
    """Bytes by cause on the deciding stage; sums to ``allocated_bytes``."""
    serving: Mapping[str, Array] = field(factory=dict)
    """Inference only: the fields of ServingFigures."""
    cache: ServingMemory | None = None
    """Inference only: what the KV cache of each strategy holds."""
    training: TrainingBatch | None = None
    blame: Mapping[str, str] = field(factory=dict)
    """Cause → plugin that added it."""

    def __len__(self) -> int:
        return len(self.batch)
