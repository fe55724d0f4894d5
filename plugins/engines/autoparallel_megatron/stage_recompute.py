"""Recompute that differs by pipeline stage.

``--recompute-method block`` recomputes the first ``--recompute-num-layers`` layers of every (virtual) stage that a
process holds, and every process reads the number for itself. Pipeline ranks are outermost in the rank order
(core/parallel_state.py: tp-cp-ep-dp-pp), so a stage is a run of world/pp consecutive ranks: whole nodes in a launch
script, any number of ranks in a Python configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy


def first_layers(options: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers at the head of every part of each stage that recompute; () when the strategy says it for all."""
    return tuple(options.get("recompute_first", ()))


def without(strategy: Strategy, options: Mapping[str, Any]) -> Strategy:
    """The strategy as the flags that are the same for all ranks see it."""
    return evolve(strategy, recompute=0) if first_layers(options) else strategy


def shell_lines(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> str:
    """What the launch script adds to the arguments of its node. Raises SpecError when stages share nodes."""
    counts = first_layers(options)
    if not any(counts):
        return ""
    per_stage = strategy.world // strategy.pp
    if per_stage % problem.cluster.gpus_per_node and strategy.pp > 1:
        raise SpecError(
            f"stages of {per_stage} GPUs share nodes of {problem.cluster.gpus_per_node}, and a launch script gives all ranks of "
            "a node the same --recompute-num-layers; use --planner grid, or a data-parallel size that fills nodes"
        )
    numbers = " ".join(map(str, counts))
    return f"""\
# Recompute: the first layers of every part of a stage, by stage; a stage is {per_stage} GPUs.
RECOMPUTE_BY_STAGE=({numbers})
RECOMPUTE=${{RECOMPUTE_BY_STAGE[NODE_RANK * GPUS_PER_NODE / {per_stage}]}}
if ((RECOMPUTE > 0)); then
    TRAINING_ARGS+=(--recompute-granularity full --recompute-method block --recompute-num-layers "$RECOMPUTE")
fi"""


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
