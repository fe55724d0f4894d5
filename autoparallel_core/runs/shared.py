"""What translating many records shares: models, clusters and problems, built once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.models import build_arch, load_model
from autoparallel_core.problem import make_problem
from autoparallel_core.runs.record import RunRecord, version_in
from autoparallel_core.spec.strategy import Strategy

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.arch import ModelArch
    from autoparallel_core.spec.cluster import Cluster
    from autoparallel_core.spec.problem import EngineSpec, Problem


@frozen
class Translated:
    """A record as a question. ``problem`` is the same object for records that differ in the strategy only."""

    problem: Problem
    strategy: Strategy
    notes: tuple[str, ...] = ()
    unpredicted: frozenset[str] = field(default=frozenset())
    """Measured quantities that the record states too little for; they are left out of the prediction."""
    open_recompute: bool = False
    """The record does not state recompute: where the default does not fit, the least that does is taken."""


class Shared:
    """Models, clusters and problems by what the records say of them."""

    def __init__(self, host: Host, refine: Callable[[Problem], Problem] | None = None) -> None:
        """``refine`` changes every problem, as measured data and calibrations do."""
        self.host, self.refine = host, refine
        self.archs: dict[str, ModelArch] = {}
        self.arch_notes: dict[str, tuple[str, ...]] = {}
        self.clusters: dict[str, Cluster] = {}
        self.problems: dict[tuple[Any, ...], Problem] = {}

    def engine(self, record: RunRecord) -> EngineSpec:
        return self.host.engine(str(record.engine), record.mode)

    def problem(self, arch: ModelArch, cluster: Cluster, workload: Any, record: RunRecord, notes: list[str]) -> Problem:
        """The shared problem of equal parts; the version falls back to the engine's default with a note."""
        version = version_in(record.engine_version)
        if record.engine_version and version is None:
            notes.append(f"engine version '{record.engine_version}' is no version number; the engine's default is taken")
        key = (id(arch), id(cluster), record.engine, version, workload)
        if key not in self.problems:
            problem = make_problem(arch, cluster, workload, engine=str(record.engine), engine_version=version, host=self.host)
            self.problems[key] = self.refine(problem) if self.refine else problem
        return self.problems[key]

    def arch(self, record: RunRecord, config: Mapping[str, Any] | None = None, name: str = "") -> ModelArch:
        """The record's model, or the given config of it."""
        model = record.model if config is None else config
        if model is None:
            raise SpecError("the record states no model")
        if isinstance(model, str):
            path = record.directory / model
            source = str(path) if path.exists() else model
            if source not in self.archs:
                self.archs[source] = load_model(source, self.host)
            return self.archs[source]
        label = name or record.name or record.id
        key = label + json.dumps(model, sort_keys=True)
        if key not in self.archs:
            self.archs[key] = build_arch(model, name=label, host=self.host)
        return self.archs[key]


def count_of(value: Any, what: str) -> int | None:
    """A positive whole number or None. Raises SpecError for anything else."""
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < 1:
        raise SpecError(f"{what} must be a positive whole number, not {value!r}")
    return int(value)
