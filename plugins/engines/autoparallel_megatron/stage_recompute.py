"""Recompute that differs by pipeline stage.

``--recompute-method block`` recomputes the first ``--recompute-num-layers`` layers of every (virtual) stage that a
process holds, and every process reads the number for itself. Pipeline ranks are outermost in the rank order
(core/parallel_state.py: tp-cp-ep-dp-pp), so a stage is a run of world/pp consecutive ranks. In a launch script a node
looks its number up where stages are whole nodes; where stages share nodes, torchrun starts each rank through a line of
shell that does (``--no-python``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy

BY_STAGE = "RECOMPUTE_BY_STAGE"
"""The shell variable that lists the numbers."""
FLAGS = "--recompute-granularity full --recompute-method block --recompute-num-layers"


def first_layers(options: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers at the head of every part of each stage that recompute; () when the strategy says it for all."""
    return tuple(options.get("recompute_first", ()))


def without(strategy: Strategy, options: Mapping[str, Any]) -> Strategy:
    """The strategy as the flags that are the same for all ranks see it."""
    return evolve(strategy, recompute=0) if first_layers(options) else strategy


def shell_lines(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> str:
    """What the launch script adds to the arguments: of its node, or of each rank (:func:`per_rank`)."""
    counts = first_layers(options)
    if not any(counts):
        return ""
    per_stage = strategy.world // strategy.pp
    numbers = " ".join(map(str, counts))
    if _share_nodes(problem, strategy):
        return f"""\
# Recompute: the first layers of every part of a stage, by stage; stages of {per_stage} GPUs share nodes, so each rank looks
# its number up.
export {BY_STAGE}="{numbers}"
PER_RANK='by_stage=(${BY_STAGE}); n=${{by_stage[RANK / {per_stage}]}}
    ((n == 0)) || set -- "$@" {FLAGS} "$n"
    exec python3 -u "$@"'"""
    return f"""\
# Recompute: the first layers of every part of a stage, by stage; a stage is {per_stage} GPUs.
{BY_STAGE}=({numbers})
RECOMPUTE=${{{BY_STAGE}[NODE_RANK * GPUS_PER_NODE / {per_stage}]}}
if ((RECOMPUTE > 0)); then
    TRAINING_ARGS+=({FLAGS} "$RECOMPUTE")
fi"""


def per_rank(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> str:
    """What torchrun is to start each rank through; nothing where a node's arguments do."""
    if not any(first_layers(options)) or not _share_nodes(problem, strategy):
        return ""
    return '--no-python bash -c "$PER_RANK" rank '


def _share_nodes(problem: Problem, strategy: Strategy) -> bool:
    return strategy.pp > 1 and bool(strategy.world // strategy.pp % problem.cluster.gpus_per_node)


def python_lines(strategy: Strategy, options: Mapping[str, Any]) -> str:
    """What the Python configuration sets by its own rank."""
    counts = first_layers(options)
    if not any(counts):
        return ""
    per_stage = strategy.world // strategy.pp
    return f"""\
    recompute = {list(counts)}[int(os.environ["RANK"]) // {per_stage}]  # first layers of every part of this stage
    cfg.model.recompute_granularity = "full" if recompute else None
    cfg.model.recompute_method = "block" if recompute else None
    cfg.model.recompute_num_layers = recompute or None"""
