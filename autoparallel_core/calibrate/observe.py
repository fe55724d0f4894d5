"""From run records to observations by stack: each record is predicted, its step split by group, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from attrs import field, frozen

from autoparallel_core.calibrate.fit import Observation
from autoparallel_core.calibrate.stacks import Stack
from autoparallel_core.errors import AutoparallelError
from autoparallel_core.records import RunRecord, Unreadable
from autoparallel_core.search.calibrated import GROUPS, SHARES, group_of

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.problem import Problem

GROSS = np.log(4.0)
"""A prediction off by more than four times is of another configuration than the one that ran."""


@frozen(eq=False)
class Observed:
    """All observations, and the records that say nothing."""

    by_stack: dict[Stack, list[Observation]] = field(factory=dict)
    unused: tuple[tuple[str, str], ...] = ()
    """(record id, why)."""


def observe(
    records: Iterable[RunRecord | Unreadable],
    host: Host,
    *,
    refine: Callable[[Problem], Problem] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Observed:
    """Predict every record and compare. ``refine`` changes each question, as measured data does."""
    from autoparallel_core.runs.translate import Translator
    from autoparallel_core.search.evaluate import evaluate
    from autoparallel_core.spec.strategy import StrategyBatch

    rows = list(records)
    translator = Translator(host, refine)
    observed = Observed()
    unused: list[tuple[str, str]] = []
    for done, record in enumerate(rows, 1):
        if isinstance(record, Unreadable):
            unused.append((record.id, record.reason))
            continue
        try:
            translated = translator.translate(record)
            problem = translated.problem
            figures = evaluate(problem, StrategyBatch.of([translated.strategy]), host)
        except AutoparallelError as e:
            unused.append((record.id, " ".join(str(e).split())))
            continue
        seconds = {k: float(v[0]) for k, v in figures.seconds.items()}
        found = _compare(record, problem, seconds, {k: float(v[0]) for k, v in figures.serving.items()})
        if isinstance(found, str):
            unused.append((record.id, found))
        else:
            observed.by_stack.setdefault(Stack.of(problem), []).append(found)
        if progress is not None:
            progress(done, len(rows))
    return Observed(observed.by_stack, tuple(unused))


def _compare(record: RunRecord, problem: Problem, seconds: dict[str, float], serving: dict[str, float]) -> Observation | str:
    step = sum(seconds.values())
    measured = measured_step_s(record, problem)
    first = record.measured.get("ttft_ms")
    if measured is None and not first:
        return "states neither the time of a step (or its tokens per second) nor a latency"
    log = None if measured is None or step <= 0 else float(np.log(measured / step))
    log_first = float(np.log(first / 1e3 / serving["ttft_s"])) if first and serving.get("ttft_s", 0.0) > 0 else None
    if any(x is not None and abs(x) > GROSS for x in (log, log_first if log is None else None)):
        return "was measured more than four times off: another configuration than the one the record states"
    if log_first is not None and abs(log_first) > GROSS:
        log_first = None
    return Observation(record.id, shares_of(seconds), log, log_first)


def shares_of(seconds: dict[str, float]) -> dict[str, float]:
    """Share of a step by group; bubbles and stragglers follow the rest and count with it in proportion."""
    whole = sum(v for c, v in seconds.items() if c not in SHARES)
    if whole <= 0:
        return {}
    return {g: sum(v for c, v in seconds.items() if group_of(c) == g) / whole for g in GROUPS}


def measured_step_s(record: RunRecord, problem: Problem) -> float | None:
    """Seconds of one training step, or per output token; None when the record does not say."""
    from autoparallel_core.runs.stats import measured_value

    if record.mode == "inference":
        tpot = measured_value(record, "tpot_ms")
        return tpot / 1e3 if tpot else None
    if step := measured_value(record, "step_time_s"):
        return step
    rate = measured_value(record, "tokens_per_s_per_gpu")
    return problem.training.tokens_per_step / rate / problem.cluster.n_gpus if rate else None
