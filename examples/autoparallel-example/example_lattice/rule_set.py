"""What lattice refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoparallel_core.search import common_rules as common
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MANUAL = "lattice manual, chapter 3"


def leaves_the_node(problem: Problem, batch: StrategyBatch) -> NDArray[np.bool_]:
    """True where tp·cp exceeds a node: bool[S]."""
    return batch.tp * batch.cp > problem.cluster.gpus_per_node


def why(problem: Problem, strategy: Strategy) -> str:
    """One sentence with the numbers and what would do."""
    node = problem.cluster.gpus_per_node
    return (
        f"tp {strategy.tp} × cp {strategy.cp} = {strategy.tp * strategy.cp} GPUs, but a node has {node}: "
        f"lattice keeps both inside a node; tp {strategy.tp} allows cp up to {max(1, node // strategy.tp)}"
    )


RULES: tuple[Rule, ...] = (
    Rule("tp cp inside a node", broken=leaves_the_node, sentence=why, source=f"{MANUAL}: rings stay on the node's links"),
    common.world_product(f"{MANUAL}: launch"),
    common.heads_divisible(f"{MANUAL}: attention"),
    common.kv_heads_divisible_or_replicated(f"{MANUAL}: attention"),
    common.batch_divisible(f"{MANUAL}: batches"),
    common.ep_needs_experts(f"{MANUAL}: experts"),
    common.experts_divisible(f"{MANUAL}: experts"),
    common.expert_grid(f"{MANUAL}: experts"),
    common.stages_at_most_layers(f"{MANUAL}: pipelines"),
)
