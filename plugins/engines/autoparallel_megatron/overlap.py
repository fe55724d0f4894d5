"""Expert-parallel communication behind computation: Megatron's ``--overlap-moe-expert-parallel-comm``.

It pairs the forward of one micro-batch with the backward of another, so that the all-to-alls of the one run
beside the computation of the other. TransformerConfig demands ep > 1, interleaving when pp > 1, and no full
recompute; the flag exists since Megatron-Core 0.14.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from autoparallel_core.search.common_rules import parse_version
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, StrategyBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

SINCE = "0.14.0"
FULL = RECOMPUTE.index("full")


def overlap_allowed(batch: StrategyBatch) -> NDArray[np.bool_]:
    """Strategies for which the flag may be set, bool[S]."""
    allowed: NDArray[np.bool_] = (batch.ep > 1) & ((batch.pp == 1) | (batch.vpp > 1)) & (batch.recompute != FULL)
    return allowed


def decides_overlap(problem: Problem) -> bool:
    """Whether nobody stated the flag, so that the engine sets it where it may."""
    software = problem.software
    return (
        "ep_overlap" in software.assumed
        and not software.ep_overlap
        and parse_version(problem.engine_version) >= parse_version(SINCE)
    )


def expert_overlap_delta(
    problem: Problem, batch: StrategyBatch, cost: Mapping[str, NDArray[np.float64]]
) -> Mapping[str, NDArray[np.float64]] | None:
    """Seconds of expert communication that the overlap hides (negative), float64[S]."""
    if "ep_comm" not in cost or not decides_overlap(problem):
        return None
    hidden = 1.0 - problem.constant("ep_overlap_exposed")
    return {"ep_comm": np.where(overlap_allowed(batch), -hidden * cost["ep_comm"], 0.0)}
