"""Engine plugin: *lattice*, an invented trainer that keeps tensor and context parallelism inside a node.

Every hook but ``engines`` answers only when the question is about this engine. What needs numpy is imported when it
is first used, so that listing plugins stays quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch
from autoparallel_core.spec.workload import Software

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

LATTICE = EngineSpec(
    name="lattice",
    modes=("training",),
    default_version="2.1",
    summary="an invented trainer: tensor and context parallelism inside the node, gradients reduced from double buffers",
    software=Software(attention_kernel="fused", elementwise="compiled", dp_overlap=False, assumed=("elementwise",)),
)


@hookimpl
def engines() -> Sequence[EngineSpec]:
    """Who we are. ``dp_overlap`` is off because :func:`adjust_cost` says how much this engine hides."""
    return [LATTICE]


@hookimpl
def search_space(problem: Problem) -> Space | None:
    """No interleaving and no sharding inside an expert; the optimizer state is always sharded."""
    if problem.engine.name != LATTICE.name:
        return None
    return Space(vpp=(1,), etp=(1,), zero=(1,), recompute=("none", "full"))


@hookimpl
def rules(problem: Problem) -> Sequence[Rule] | None:
    """Its own rule about nodes, and those it shares with others."""
    if problem.engine.name != LATTICE.name:
        return None
    from example_lattice.rule_set import RULES

    return RULES


@hookimpl
def memory(problem: Problem, batch: StrategyBatch) -> Mapping[str, FloatArray] | None:
    """Two buckets of gradients in flight whenever gradients are reduced, in bytes per GPU."""
    if problem.engine.name != LATTICE.name:
        return None
    from example_lattice.costs import bucket_bytes

    return {"gradient buckets": bucket_bytes(batch)}


@hookimpl
def adjust_cost(problem: Problem, cost: Mapping[str, FloatArray]) -> Mapping[str, FloatArray] | None:
    """Seconds of gradient reduction that run behind the backward pass (negative: they are taken off).

    A hook takes the arguments it needs; this one leaves ``batch`` out.
    """
    if problem.engine.name != LATTICE.name:
        return None
    from example_lattice.costs import hidden_reduction_s

    return {"dp_comm": -hidden_reduction_s(cost)}
