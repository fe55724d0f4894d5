"""Everything a question holds, parsed: what every plugin hook and every cost function receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import evolve, field, frozen

from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.calibration import Calibration
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.serving import ServingPolicy
from autoparallel_core.spec.workload import InferenceWorkload, Software, TrainingWorkload, Workload


@frozen
class Constant:
    """A number of the model with its meaning and origin (measured, vendor, fitted, assumed)."""

    value: float
    meaning: str
    source: str
    origin: Literal["measured", "vendor", "fitted", "assumed"] = "assumed"


@frozen
class Ability:
    """Something that an engine runs beyond one strategy for all layers and the usual spread of layers over stages."""

    since: str
    """First version that can."""
    how: str
    """By which of its options, in words for the answer."""


ABILITIES = (
    "uneven_stages", "recompute_by_stage", "recompute_by_layer", "strategy_by_stage", "strategy_by_layer",
    "host_activations",
)  # fmt: skip
"""Names of abilities.

``uneven_stages``: any number of layers per (virtual) stage. ``recompute_by_stage``: each stage recomputes a number of its
first layers of its own; ``recompute_by_layer``: any layers. ``strategy_by_stage``: stages of different meshes or degrees;
``strategy_by_layer``: layers of different degrees. ``host_activations``: the first layers of a single stage without
recompute keep their activations in host memory.
"""


@frozen
class EngineSpec:
    """What an engine plugin registers: identity, defaults, constants. Behaviour comes through its other hooks."""

    name: str
    modes: tuple[Literal["training", "inference"], ...]
    default_version: str
    """Taken when nobody names one; also the newest whose rules and policies are known."""
    summary: str
    software: Software = field(factory=Software)
    recorded_software: Mapping[str, Any] = field(factory=dict)
    """Fields of Software that published runs which say nothing of them used, where a user's default is another."""
    constants: Mapping[str, Constant] = field(factory=dict)
    """Overrides of, or additions to, the core's constants, by the same names (see docs/reference/constants.md)."""
    moe_grid: Literal["folded", "tp_or_ep"] = "folded"
    """folded: ep and etp chosen freely (parallel folding, arXiv 2504.14960); tp_or_ep: experts are either TP- or EP-sharded."""
    default_strategy: Mapping[str, int] = field(factory=dict)
    """Columns of Strategy that a launch file or run record which says nothing means (zero, recompute); others are Strategy's."""
    abilities: Mapping[str, Ability] = field(factory=dict)
    """By name (:data:`ABILITIES`); what is not listed the engine cannot do."""
    decides: Mapping[str, str] = field(factory=dict)
    """Software fields that the engine's hooks settle per strategy unless the user states them, with the words that say how."""
    default_for: tuple[Literal["training", "inference"], ...] = ()
    """Modes in which the command takes this engine when the user names none; two claims on a mode must be resolved by a name."""
    serving: tuple[ServingPolicy, ...] = ()
    """Memory layout by version range; the first whose range holds the version is used."""
    oldest_version: str | None = None
    """The oldest whose rules and policies are known; an answer about an older one says so. None: not stated."""


@frozen
class Problem:
    """One question. Frozen; ``with_*`` give changed copies."""

    arch: ModelArch
    cluster: Cluster
    workload: Workload
    engine: EngineSpec
    engine_version: str
    constants: Mapping[str, Constant] = field(factory=dict, repr=False)
    """Core's constants with the engine's overrides applied."""
    software: Software = field(factory=Software)
    assumptions: tuple[str, ...] = ()
    calibration: Calibration | None = None
    """Factors learnt from one's own runs, laid on every predicted time."""

    @property
    def mode(self) -> Literal["training", "inference"]:
        return "training" if isinstance(self.workload, TrainingWorkload) else "inference"

    @property
    def training(self) -> TrainingWorkload:
        assert isinstance(self.workload, TrainingWorkload), "asked for the training workload of an inference problem"
        return self.workload

    @property
    def inference(self) -> InferenceWorkload:
        assert isinstance(self.workload, InferenceWorkload), "asked for the inference workload of a training problem"
        return self.workload

    def constant(self, name: str) -> float:
        return self.constants[name].value

    def with_workload(self, workload: Workload) -> Problem:
        return evolve(self, workload=workload)

    def with_cluster(self, cluster: Cluster) -> Problem:
        return evolve(self, cluster=cluster)
