"""Bytes that Megatron holds beyond the core's count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOCABULARY_MULTIPLE = 128
"""Default of ``--make-vocab-size-divisible-by``: the table is padded to a multiple of this times tp."""


def padded_vocabulary(vocab: int, tp: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of the embedding after padding (megatron/training/vocab_utils.py)."""
    multiple = VOCABULARY_MULTIPLE * tp
    return -(-vocab // multiple) * multiple


def extra_bytes(problem: Problem, batch: StrategyBatch) -> Mapping[str, NDArray[np.float64]]:
    """Weights, gradients and optimizer state of the padding rows of one vocabulary table per rank, float64[S].

    With one pipeline stage and untied embeddings a rank holds two tables; with more, one.
    """
    arch = problem.arch
    rows = (padded_vocabulary(arch.vocab_size, batch.tp) - arch.vocab_size) / batch.tp
    tables = np.where((batch.pp == 1) & (not arch.tied_embeddings), 2.0, 1.0)
    shard = np.where(batch.zero > 0, batch.shard, 1)
    c = problem.constant
    frozen = problem.training.task == "lora"
    weight = c("memory_weight_bytes")
    grad = 0.0 if frozen else c("memory_grad_bytes")
    state = 0.0 if frozen else c("memory_optimizer_bytes")
    per_param = np.where(batch.zero >= 3, weight / shard, weight) + np.where(batch.zero >= 2, grad / shard, grad) + state / shard
    return {"vocabulary padding": rows * arch.hidden_size * tables * per_param}
