"""PyTorch FSDP2, as the trainers around it (accelerate, composer, automodel) run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.launch import Launch
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_fsdp.spec import FSDP, SPACE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


@hookimpl
def engines() -> Sequence[EngineSpec]:
    return [FSDP]


@hookimpl
def search_space(problem: Problem) -> Space | None:
    return SPACE if problem.engine.name == FSDP.name else None


@hookimpl
def rules(problem: Problem) -> Sequence[Rule] | None:
    if problem.engine.name != FSDP.name:
        return None
    from autoparallel_core.search.common_rules import holding
    from autoparallel_fsdp.rule_set import RULES

    return holding(RULES, problem.engine_version)


@hookimpl
def memory(problem: Problem, batch: StrategyBatch) -> Mapping[str, FloatArray] | None:
    if problem.engine.name != FSDP.name:
        return None
    from autoparallel_core.cost.sharded_master import no_separate_master

    return no_separate_master(problem, batch)


@hookimpl
def export(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str] | None:
    if problem.engine.name != FSDP.name:
        return None
    from autoparallel_fsdp.exporter import launch_files

    return launch_files(problem, strategy, options)


@hookimpl
def read(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    from autoparallel_fsdp.reader import read_launch

    return read_launch(files, engine, problem)
