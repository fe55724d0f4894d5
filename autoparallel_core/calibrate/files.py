"""Calibration files: what was learnt, per stack, and which of it concerns a question."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import cattrs
from attrs import asdict, evolve, field, frozen

from autoparallel_core.calibrate.fit import LIMITS
from autoparallel_core.calibrate.stacks import Stack
from autoparallel_core.errors import SpecError
from autoparallel_core.json_file import read_json_file
from autoparallel_core.spec.calibration import Calibration
from autoparallel_core.spec.problem import Problem
from autoparallel_core.strict import strict_converter

SCHEMA_VERSION = 1
KIND = "autoparallel calibration"


@frozen
class Lesson:
    """One stack's factors with the errors that speak for them (medians; leave-one-out is None for a single record)."""

    stack: Stack
    factors: Calibration
    records: int
    error_before: float
    error_after: float
    error_left_out: float | None = None
    oddities: tuple[str, ...] = ()
    used: bool = True
    """False: predicting each record from the others got worse, so the factors are not laid on anything."""


@frozen
class CalibrationFile:
    """A parsed file."""

    lessons: tuple[Lesson, ...]
    source: str = ""
    """The records' file."""
    date: str = ""
    path: str = field(default="", eq=False)

    def applied_to(self, problem: Problem) -> Problem:
        """The problem with its stack's factors on it, unchanged where no lesson is about its stack."""
        stack = Stack.of(problem)
        lesson = next((x for x in self.lessons if x.used and x.stack.same(stack)), None)
        if lesson is None:
            return problem
        runs = f"{lesson.records} run{'s' if lesson.records > 1 else ''}"
        return evolve(problem, calibration=evolve(lesson.factors, source=f"calibrated on {runs} of this stack ({self.path})"))

    def says(self, problem: Problem) -> str:
        """What the answer tells about it."""
        if problem.calibration is not None:
            return problem.calibration.source
        known = "; ".join(dict.fromkeys(x.stack.words for x in self.lessons if x.used)) or "no stack"
        return f"calibration {self.path} is about other stacks ({known}) and changes nothing here"


def write_calibration(found: CalibrationFile, path: Path) -> None:
    """Write a file that :func:`read_calibration` accepts."""
    body = {
        "schema_version": SCHEMA_VERSION, "kind": KIND, "source": found.source, "date": found.date or today(),
        "stacks": [_plain(x) for x in found.lessons],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_calibration(path: Path) -> CalibrationFile:
    """Read a calibration file.

    Raises:
        SpecError: missing, not such a file, or a factor outside of what is physically plausible (it is named).
    """
    where = f"calibration {path}"
    body = read_json_file(path, where)
    if not isinstance(body, dict) or body.get("kind") != KIND:
        raise SpecError(f"{where}: is no calibration file ('autoparallel calibrate RUNS.jsonl --output FILE' writes one)")
    if body.get("schema_version") != SCHEMA_VERSION:
        raise SpecError(f"{where}: schema_version is {body.get('schema_version')!r}; this version reads {SCHEMA_VERSION}")
    try:
        lessons = strict_converter().structure(body.get("stacks", []), tuple[Lesson, ...])
    except (cattrs.BaseValidationError, TypeError) as e:
        reason = "; ".join(cattrs.transform_error(e)) if isinstance(e, cattrs.BaseValidationError) else str(e)
        raise SpecError(f"{where}: {reason}") from e
    for i, lesson in enumerate(lessons):
        for name, (low, high) in LIMITS.items():
            value = getattr(lesson.factors, name)
            if not low * 0.999 <= value <= high * 1.001:
                raise SpecError(f"{where}: stacks[{i}].factors.{name} is {value:g}; plausible are {low:g} to {high:g}")
    return CalibrationFile(lessons, str(body.get("source", "")), str(body.get("date", "")), str(path))


def today() -> str:
    """The date in UTC."""
    return dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d")


def _plain(lesson: Lesson) -> dict[str, Any]:
    out = asdict(lesson)
    out["factors"].pop("source")
    return out
