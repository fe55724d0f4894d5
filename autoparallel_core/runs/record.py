"""Run records: one JSON object a line, a run that was measured, in the format of docs/reference/run-records.md.

Reading is strict about shape (a field of the wrong type names itself) and lenient about silence: null means that the
source did not say, and the engine's documented default is taken and noted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from autoparallel_core.errors import SpecError

Mode = Literal["training", "inference"]
MODES: tuple[Mode, ...] = ("training", "inference")
CONFIDENCE = ("high", "medium", "low")


@frozen
class RunRecord:
    """One measured run, as its source states it; nothing is defaulted here."""

    id: str
    mode: Mode
    model: Mapping[str, Any] | str | None
    """A config.json object, a path to one relative to ``directory``, or a name of the catalogue."""
    cluster: Mapping[str, Any]
    engine: str | None
    workload: Mapping[str, Any]
    strategy: Mapping[str, Any]
    settings: Mapping[str, Any]
    measured: Mapping[str, Any]
    name: str = ""
    source: str = ""
    engine_version: str | None = None
    rank_family: str | None = None
    config_key: str | None = None
    confidence: str = "high"
    flags: tuple[str, ...] = ()
    notes: str = ""
    directory: Path = field(factory=Path)
    """Where relative paths start: the directory of the file."""

    @property
    def kind(self) -> str:
        """``mla``, ``moe`` or ``dense`` for a training record, the model's name for a serving one."""
        if not isinstance(self.model, Mapping):
            return self.name or Path(str(self.model)).stem
        if self.model.get("kv_lora_rank"):
            return "mla"
        experts = ("n_routed_experts", "num_experts", "num_local_experts")
        return "moe" if any(self.model.get(k) for k in experts) else "dense"


@frozen
class Unreadable:
    """A line that is no record, kept so that nothing is dropped."""

    id: str
    reason: str


def parse_record(row: Mapping[str, Any], *, directory: Path | None = None) -> RunRecord:
    """A record from one JSON object.

    Raises:
        SpecError: a required field is missing or of the wrong type.
    """
    if not isinstance(row, Mapping):
        raise SpecError(f"a run record must be a JSON object, not {type(row).__name__}")
    name = row.get("id")
    if not isinstance(name, str) or not name:
        raise SpecError("run record: 'id' must be a non-empty text")

    def part(key: str) -> Mapping[str, Any]:
        value = row.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise SpecError(f"run record {name}: '{key}' must be an object, not {type(value).__name__}")
        return value

    def text(key: str) -> str | None:
        value = row.get(key)
        if value is not None and not isinstance(value, str):
            raise SpecError(f"run record {name}: '{key}' must be text, not {value!r}")
        return value

    mode = row.get("mode")
    if mode not in MODES:
        raise SpecError(f"run record {name}: 'mode' must be one of {', '.join(MODES)}, not {mode!r}")
    model = row.get("model")
    if model is not None and not isinstance(model, Mapping | str):
        raise SpecError(f"run record {name}: 'model' must be a config object or a path, not {type(model).__name__}")
    confidence = text("confidence") or "high"
    if confidence not in CONFIDENCE:
        raise SpecError(f"run record {name}: 'confidence' must be one of {', '.join(CONFIDENCE)}, not '{confidence}'")
    flags = row.get("flags") or ()
    if isinstance(flags, str) or not isinstance(flags, list | tuple):
        raise SpecError(f"run record {name}: 'flags' must be a list of texts, not {flags!r}")
    return RunRecord(
        id=name, mode=mode, model=model, cluster=part("cluster"), engine=text("engine"), workload=part("workload"),
        strategy=part("strategy"), settings=part("settings"), measured=part("measured"), name=text("name") or "",
        source=text("source") or "", engine_version=text("engine_version"), rank_family=text("rank_family"),
        config_key=text("config_key"), confidence=confidence, flags=tuple(map(str, flags)), notes=text("notes") or "",
        directory=directory or Path(),
    )  # fmt: skip


def read_records(path: Path) -> Iterator[RunRecord | Unreadable]:
    """The records of a JSON-lines file in order; blank lines are skipped, lines that cannot be read come as Unreadable.

    Raises:
        SpecError: the file cannot be opened or is not text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file; give a file of run records, one JSON object a line") from None
    except (OSError, UnicodeDecodeError) as e:
        raise SpecError(f"{path}: cannot be read: {e}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name = f"line {number}"
        try:
            row = json.loads(line)
            if isinstance(row, Mapping) and isinstance(row.get("id"), str):
                name = row["id"]
            yield parse_record(row, directory=path.parent)
        except (json.JSONDecodeError, RecursionError) as e:
            yield Unreadable(name, f"line {number} is not valid JSON: {e}")
        except SpecError as e:
            yield Unreadable(name, str(e))


def version_in(text: str | None) -> str | None:
    """The first version number in a free text (``0.11.x (2025-11)`` gives 0.11), None when there is none (dates are not)."""
    if not text:
        return None
    m = re.search(r"(?<![\w.-])v?(\d{1,3}(?:\.\d+)+(?:\.?(?:rc|dev|post|a|b)\d+)*)", text.replace(".x", ""))
    return m[1] if m else None
