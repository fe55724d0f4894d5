"""Pickled ``torch.utils.benchmark`` measurements, read without torch and without running anything from the file.

The shape stands in the measurement's ``label``, ``sub_label`` or ``description`` as ``column=value`` words next to the
table's name: ``Timer(…, label="gemm", sub_label="dtype=bf16 m=4096 n=4096 k=4096")``.
"""

from __future__ import annotations

import pickle
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.files import Profile
from autoparallel_core.profiles.tables import TABLES, Provenance, table_of
from autoparallel_core.spec.cluster import Gpu


class _Plain:
    """Stands in for Measurement and TaskSpec: their attributes, none of their code."""

    def __init__(self, *_: Any, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("torch.utils.benchmark") and name in {"Measurement", "TaskSpec"}:
            return _Plain
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def read_measurements(path: Path, gpu: Gpu) -> Profile:
    """A pickled measurement, or list of them. Raises SpecError for anything else, naming what is missing."""
    where = f"profile {path}"
    try:
        with path.open("rb") as f:
            found = _Unpickler(f).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError, TypeError) as e:
        raise SpecError(f"{where}: is no pickled list of torch.utils.benchmark measurements: {e}") from None
    return from_measurements(found if isinstance(found, list | tuple) else [found], gpu, where=where)


def from_measurements(measurements: Iterable[Any], gpu: Gpu, *, where: str = "measurements") -> Profile:
    """A profile of ``torch.utils.benchmark.Measurement`` objects. Raises SpecError."""
    by_table: dict[str, list[dict[str, Any]]] = {}
    for i, m in enumerate(measurements):
        spec, entry = getattr(m, "task_spec", None), f"{where}: measurement {i}"
        runs = [float(t) / int(getattr(m, "number_per_run", 1)) for t in getattr(m, "raw_times", ())]
        if spec is None or not runs:
            raise SpecError(f"{entry} has no times, or is no measurement")
        words = " ".join(str(getattr(spec, a, None) or "") for a in ("label", "sub_label", "description"))
        name = next((w for w in re.findall(r"\w+", words) if w in TABLES), None)
        if name is None:
            raise SpecError(f"{entry}: its label '{words.strip()}' names no table; one of {', '.join(TABLES)} must be in it")
        shape = dict(re.findall(r"(\w+)\s*=\s*([\w.]+)", words))
        row: dict[str, Any] = {k: int(v) if v.isdigit() else v for k, v in shape.items()}
        quarter = statistics.quantiles(runs, n=4) if len(runs) > 1 else [runs[0]] * 3
        median = statistics.median(runs)
        by_table.setdefault(name, []).append({**row, "seconds": median, "spread": (quarter[2] - quarter[0]) / median})
    if not by_table:
        raise SpecError(f"{where}: holds no measurement")
    tables = {name: table_of(name, rows, where) for name, rows in by_table.items()}
    return Profile(gpu.name, Provenance(source="torch.utils.benchmark measurements"), tables)
