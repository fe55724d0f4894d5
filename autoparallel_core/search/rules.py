"""Legality: the rules of an engine, applied to batches (masks and counts) or to one strategy (sentences)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from autoparallel_core.errors import AutoparallelError, PluginContract
from autoparallel_core.hosting.loading import where_raised
from autoparallel_core.search.common_rules import holding
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.strategy import COLUMNS, Strategy, StrategyBatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    BoolArray = NDArray[np.bool_]


@frozen
class Violation:
    """One broken rule, said with the numbers of the strategy."""

    rule: str
    sentence: str
    source: str


class ReadsOptions(Exception):
    """A rule asked for a column that a table of layouts does not have."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule.id)
        self.rule = rule


def rules_for(problem: Problem, host: Any) -> tuple[Rule, ...]:
    """Rules of every engine plugin that hold for the problem's mode and engine version.

    They keep each plugin's order; plugins are ordered by name, so that the answer does not depend on loading.

    Raises:
        PluginContract: a plugin returned something other than rules, or two declare the same rule id.
        SpecError: the engine version cannot be compared.
    """
    out: list[Rule] = []
    owner: dict[str, str] = {}
    for plugin, rules in sorted(host.call("engines", "rules", problem=problem), key=lambda r: str(r[0].name)):
        for rule in rules:
            if not isinstance(rule, Rule):
                raise PluginContract(f"plugin '{plugin.name}': hook rules must return Rule objects, not {type(rule).__name__}")
        for rule in holding((r for r in rules if problem.mode in r.modes), problem.engine_version):
            if rule.id in owner:
                raise PluginContract(f"rule '{rule.id}' is declared twice, by plugins '{owner[rule.id]}' and '{plugin.name}'")
            owner[rule.id] = plugin.name
            out.append(rule)
    return tuple(out)


def broken(problem: Problem, batch: StrategyBatch, rule: Rule) -> BoolArray:
    """Which strategies break one rule: bool[S].

    Raises:
        PluginContract: the rule raised, or returned another type or shape.
        ReadsOptions: ``batch`` is a table of layouts, and the rule asked for a column that it lacks.
    """
    import numpy as np

    try:
        mask = rule.broken(problem, batch)
    except KeyError as e:
        if e.args and e.args[0] in COLUMNS and e.args[0] not in batch.columns:
            raise ReadsOptions(rule) from e
        raise _defect(rule, e) from e
    except AutoparallelError:
        raise
    except Exception as e:
        raise _defect(rule, e) from e
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (len(batch),):
        got = f"{mask.dtype}{list(mask.shape)}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise PluginContract(f"rule '{rule.id}' ({rule.source}) must return bool[{len(batch)}], not {got}")
    return mask


def _defect(rule: Rule, error: Exception) -> PluginContract:
    """A plugin's rule failed: names the rule, its module and the line."""
    return PluginContract(
        f"rule '{rule.id}' of {getattr(rule.broken, '__module__', 'a plugin')} raised {where_raised(error, __file__)}"
    )


def first_broken(problem: Problem, batch: StrategyBatch, rules: Sequence[Rule]) -> NDArray[np.int16]:
    """Index of the first rule that each strategy breaks, -1 where it breaks none: int16[S]."""
    import numpy as np

    first = np.full(len(batch), -1, dtype=np.int16)
    rows: NDArray[np.int64] | slice = slice(None)  # the rows of ``batch`` that ``part`` holds
    part = batch
    for i, rule in enumerate(rules):
        if not len(part):
            break
        mask = broken(problem, part, rule)
        here = first[rows]
        here[mask & (here < 0)] = i
        first[rows] = here
        alive = here < 0
        if 2 * np.count_nonzero(alive) < len(part):  # later rules need not see what is out already
            rows = np.flatnonzero(first < 0)
            part = batch.take(rows)
    return first


def apply_rules(problem: Problem, batch: StrategyBatch, rules: Sequence[Rule]) -> tuple[BoolArray, dict[str, int]]:
    """Mask of the legal strategies (bool[S]), and how many were refused under the first rule each of them breaks."""
    import numpy as np

    first = first_broken(problem, batch, rules)
    legal = first < 0
    counts = np.bincount(first[~legal], minlength=len(rules))
    return legal, {r.id: int(n) for r, n in zip(rules, counts, strict=True) if n}


def violations(problem: Problem, strategy: Strategy, rules: Sequence[Rule]) -> list[Violation]:
    """Every rule that one strategy breaks, in the order of the rules."""
    one = StrategyBatch.of([strategy])
    return [Violation(r.id, _said(problem, strategy, r), r.source) for r in rules if broken(problem, one, r)[0]]


def _said(problem: Problem, strategy: Strategy, rule: Rule) -> str:
    try:
        return rule.sentence(problem, strategy)
    except AutoparallelError:
        raise
    except Exception as e:
        raise _defect(rule, e) from e
