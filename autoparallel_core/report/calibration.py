"""What a calibration learnt: errors before and after, how far each factor moved, and whether that is believable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import asdict

from autoparallel_core.calibrate.files import CalibrationFile, Lesson
from autoparallel_core.calibrate.fit import LIMITS
from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import bullets, heading, make_console, put
from autoparallel_core.report.document import envelope

_LISTED = 3
_MOVED = 0.01


def print_calibration(found: CalibrationFile, unused: Sequence[tuple[str, str]]) -> None:
    """One paragraph per stack."""
    console = make_console()
    for lesson in found.lessons:
        heading(console, lesson.stack.words)
        put(console, errors(lesson))
        bullets(
            console, [*moves(lesson), *(f"hard to believe: {o}; check that the records say what ran" for o in lesson.oddities)]
        )
        if not lesson.used:
            put(console, "Not used: predicting each run from the others gets worse, so these runs do not share one bias.")
    if unused:
        heading(console, f"{len(unused)} records say nothing here")
        bullets(console, [f"{name}: {why}" for name, why in unused[:_LISTED]])
        if len(unused) > _LISTED:
            put(console, f"and {len(unused) - _LISTED} more")
    put(console, f"Written to {found.path}; use it with --calibration {found.path}")


def errors(lesson: Lesson) -> str:
    """``5 runs: median error 11% as predicted, 4% calibrated, 6% for each run from the others``."""
    runs = f"{lesson.records} run{'s' if lesson.records > 1 else ''}"
    text = f"{runs}: median error {lesson.error_before:.1%} as predicted, {lesson.error_after:.1%} calibrated"
    if lesson.error_left_out is not None:
        return f"{text}, {lesson.error_left_out:.1%} for each run from the others"
    return f"{text}; one run cannot be checked by another"


_WORDS = {
    "scale": "all times", "kernels": "kernels (compute efficiency)", "collectives": "exposed communication",
    "host": "host time", "prefill": "interference of prompts", "first_token": "time to the first token",
}  # fmt: skip


def moves(lesson: Lesson) -> list[str]:
    """How far each factor moved."""
    out = []
    for name in LIMITS:
        value = float(getattr(lesson.factors, name))
        if abs(value - 1) >= _MOVED:
            out.append(f"{_WORDS[name]}: {fmt.change(value)} against the prediction")
    return out or ["no factor moved by a percent: the predictions hold"]


def calibration_document(found: CalibrationFile, unused: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The lessons as JSON."""
    stacks = [asdict(x) for x in found.lessons]
    for s in stacks:
        s["factors"].pop("source")
    left = [{"id": name, "reason": why} for name, why in unused]
    return envelope("calibrate", {"status": "ok", "file": found.path, "source": found.source, "stacks": stacks, "unused": left})
