"""A legality rule: one predicate over a batch, one sentence for one strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import Strategy, StrategyBatch

    Predicate = Callable[[Problem, StrategyBatch], NDArray[np.bool_]]
    Sentence = Callable[[Problem, Strategy], str]


@frozen
class Rule:
    """``broken`` marks the strategies (bool[S]) that violate the rule; ``sentence`` says it with the numbers.

    ``since`` and ``until`` bound the engine versions (inclusive, exclusive) for which it holds.
    """

    id: str
    """Short and stable, e.g. ``heads % tp``: counted and printed for refusals."""
    broken: Predicate
    sentence: Sentence
    source: str
    since: str | None = None
    until: str | None = None
    modes: tuple[str, ...] = ("training", "inference")
