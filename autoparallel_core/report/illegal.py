"""A strategy that an engine would refuse: every rule it breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.report.console import bullets, heading, make_console
from autoparallel_core.report.document import envelope, problem_document
from autoparallel_core.report.header import print_header
from autoparallel_core.search.rules import Violation
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy


def print_violations(problem: Problem, parameters: Mapping[str, Any], strategy: Strategy, broken: Sequence[Violation]) -> None:
    """Each broken rule as one sentence with its source."""
    console = make_console()
    print_header(console, problem, parameters, assumptions=problem.assumptions)
    heading(console, f"{problem.engine.name} {problem.engine_version} does not run {strategy}")
    bullets(console, [f"{v.sentence} (rule '{v.rule}'; {v.source})" for v in broken])


def violations_document(
    problem: Problem, model: Mapping[str, Any], strategy: Strategy, broken: Sequence[Violation]
) -> dict[str, Any]:
    return envelope(
        "explain",
        {
            "status": "illegal",
            **problem_document(problem, model),
            "assumptions": list(problem.assumptions),
            "strategy": str(strategy),
            "violations": [{"rule": v.rule, "sentence": v.sentence, "source": v.source} for v in broken],
        },
    )
