"""DeepSpeed: ZeRO 0-3, pipeline modules, Ulysses sequence parallelism, native and automatic expert parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.launch import Launch
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy
from autoparallel_deepspeed.spec import DEEPSPEED, SPACE


@hookimpl
def engines() -> Sequence[EngineSpec]:
    return [DEEPSPEED]


@hookimpl
def search_space(problem: Problem) -> Space | None:
    return SPACE if problem.engine.name == DEEPSPEED.name else None


@hookimpl
def rules(problem: Problem) -> Sequence[Rule] | None:
    if problem.engine.name != DEEPSPEED.name:
        return None
    from autoparallel_core.search.common_rules import holding
    from autoparallel_deepspeed.rule_set import RULES

    return holding(RULES, problem.engine_version)


@hookimpl
def export(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str] | None:
    if problem.engine.name != DEEPSPEED.name:
        return None
    from autoparallel_deepspeed.exporter import launch_files

    return launch_files(problem, strategy, options)


@hookimpl
def read(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    from autoparallel_deepspeed.reader import read_launch

    return read_launch(files, engine, problem)
