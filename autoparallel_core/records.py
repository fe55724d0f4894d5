"""Run records, the public face: read them, and turn one into the question it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoparallel_core.runs.record import RunRecord, Unreadable, parse_record, read_records

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import Strategy

__all__ = ["RunRecord", "Unreadable", "parse_record", "read_records", "to_problem"]


def to_problem(record: RunRecord, host: Host) -> tuple[Problem, Strategy]:
    """The question that a record answers, and the strategy that ran.

    Raises:
        SpecError: the record does not say enough to be priced, or something in it is unknown.
    """
    from autoparallel_core.runs.translate import Translator

    translated = Translator(host).translate(record)
    return translated.problem, translated.strategy
