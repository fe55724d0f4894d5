"""Problems of the cost tests: real GPUs of the installed presets, models built by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve
from problem_builders import dense

import autoparallel_core as ap
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.problem import Constant, Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch, parse_strategy


def problem(
    arch: ModelArch | None = None,
    *,
    gpu: str = "H100",
    n_gpus: int = 64,
    seq_len: int = 4096,
    batch: int = 256,
    precision: str = "bf16",
    task: str = "pretrain",
    engine: str = "megatron",
    constants: Mapping[str, float] | None = None,
    **software: Any,
) -> Problem:
    """One question; ``constants`` replace the engine's."""
    host = ap.host()
    work = ap.TrainingWorkload(seq_len=seq_len, global_batch_size=batch, precision=precision, task=task)
    cluster = ap.build_cluster(host.gpu(gpu), n_gpus)
    p = ap.make_problem(arch or dense(32, 4096, 32, 8, 14336, 128256), cluster, work, engine=engine, host=host, software=software)
    changed = {k: Constant(v, "", "test") for k, v in (constants or {}).items()}
    return evolve(p, constants={**p.constants, **changed})


def strategy(text: str) -> Strategy:
    return parse_strategy(text)


def price(p: Problem, *texts: str) -> Evaluation:
    """Strategies in compact notation."""
    return evaluate(p, StrategyBatch.of([parse_strategy(t) for t in texts]))
