"""Megatron-Core and the trainers on top of it (Megatron-LM, Megatron-Bridge, NeMo) as a training engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.launch import Launch
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_megatron.spec import MEGATRON, SPACE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


@hookimpl
def engines() -> Sequence[EngineSpec]:
    return [MEGATRON]


@hookimpl
def search_space(problem: Problem) -> Space | None:
    return SPACE if problem.engine.name == MEGATRON.name else None


@hookimpl
def rules(problem: Problem) -> Sequence[Rule] | None:
    if problem.engine.name != MEGATRON.name:
        return None
    from autoparallel_core.search.common_rules import holding
    from autoparallel_megatron.rule_set import RULES

    return holding(RULES, problem.engine_version)


@hookimpl
def memory(problem: Problem, batch: StrategyBatch) -> Mapping[str, FloatArray] | None:
    if problem.engine.name != MEGATRON.name:
        return None
    from autoparallel_megatron.padding import extra_bytes

    return extra_bytes(problem, batch)


@hookimpl
def adjust_cost(problem: Problem, batch: StrategyBatch, cost: Mapping[str, FloatArray]) -> Mapping[str, FloatArray] | None:
    if problem.engine.name != MEGATRON.name:
        return None
    from autoparallel_megatron.overlap import expert_overlap_delta

    return expert_overlap_delta(problem, batch, cost)


@hookimpl
def export(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str] | None:
    if problem.engine.name != MEGATRON.name:
        return None
    from autoparallel_megatron.exporter import launch_files

    return launch_files(problem, strategy, options)


@hookimpl
def read(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    from autoparallel_megatron.reader import read_launch

    return read_launch(files, engine, problem)
