"""The plan of a traced module: a document that can be kept, compared, edited and replayed; and who makes it.

The core knows the document (docs/reference/plan-json.md) and not the tensor library; a plugin traces modules and replays
plans (hook ``module_planner``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.json_file import read_json_file
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.module_plan_shape import check_shape
from autoparallel_core.spec.module_source import BuiltModule, ModuleSource

SCHEMA = "autoparallel.module-plan"
VERSION = 1


@frozen(eq=False)
class ModulePlan:
    """One plan; ``document`` is plain data as docs/reference/plan-json.md describes it."""

    document: Mapping[str, Any]

    @property
    def mesh(self) -> dict[str, int]:
        """Sizes of the mesh dimensions by name, outermost first."""
        return dict(zip(self.document["mesh"]["names"], self.document["mesh"]["sizes"], strict=True))

    @property
    def step_s(self) -> float:
        """Predicted seconds of one training step."""
        return float(self.document["cost"]["step_s"])

    @property
    def peak_bytes(self) -> float:
        """Predicted memory per GPU at its highest."""
        return float(self.document["memory"]["peak_bytes"])

    @property
    def gap(self) -> float:
        """How far the step may be from the best one, relative; 0 when it is proven best."""
        return float(self.document["search"]["gap"])

    @property
    def source(self) -> ModuleSource | None:
        """How the module was made; None when it was given as an object."""
        found = self.document.get("source")
        return ModuleSource.of(found) if found else None

    @property
    def placements(self) -> dict[str, str]:
        """Parameter name → its placement, one word per mesh dimension."""
        return {name: str(p["placement"]) for name, p in self.document["parameters"].items()}

    def text(self) -> str:
        """The document as JSON."""
        return json.dumps(self.document, separators=(",", ":"), allow_nan=False) + "\n"

    def save(self, path: Path | str) -> None:
        """Write the document."""
        Path(path).write_text(self.text(), encoding="utf-8")


def read_module_plan(path: Path | str) -> ModulePlan:
    """A plan from its file.

    Raises:
        SpecError: the file is missing, no JSON, no plan, damaged, or of a version that this program does not read.
    """
    path = Path(path)
    document = read_json_file(path, f"plan {path}")
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise SpecError(f"plan {path}: not a plan of a module (its 'schema' is not {SCHEMA})")
    if document.get("version") != VERSION:
        raise SpecError(f"plan {path}: version {document.get('version')} of the schema, this program reads {VERSION}")
    check_shape(document, f"plan {path}")
    return ModulePlan(document)


Placed = tuple[Sequence[str], Sequence[str]]
"""Placements of the outputs and of the tensor inputs on one mesh dimension: ``R``, ``S(dimension)`` or ``P``."""


@frozen
class OperatorRule:
    """How an operator may be sharded, and what it computes (hook ``operator_rules``)."""

    placements: Callable[[Sequence[tuple[int, ...]], Sequence[Any]], Sequence[Placed]]
    """(shapes of the tensor inputs, all arguments with None for tensors) → placements with which the operator, run on the
    pieces, gives the pieces of its result. All replicated need not be listed."""
    flops: Callable[[Sequence[tuple[float, ...]]], float] | None = None
    """Shapes of the tensor inputs of one rank → FLOPs; None: it takes the time of its memory traffic."""


@frozen(kw_only=True)
class ModuleRequest:
    """What is asked of a module planner beside the module and its inputs."""

    cluster: Cluster
    mesh_names: tuple[str, ...]
    mesh_sizes: tuple[int, ...]
    """Outermost first; empty when the planner is to choose."""
    pins: Mapping[str, str] = field(factory=dict)
    """Name pattern → placement, as in ``layers.*.wq=S(0)``."""
    memory_limit_bytes: float | None = None
    """Per GPU; None takes what the GPU has, less what its runtime keeps."""
    optimizer_bytes: float | None = None
    """Optimizer state per parameter; None: two moments in fp32, and an fp32 copy of parameters kept in 16 bit."""
    time_limit_s: float = 120.0
    options: Mapping[str, Any] = field(factory=dict)
    """What else the planner documents."""


@runtime_checkable
class ModulePlanner(Protocol):
    """Traces a module, finds its placements, and replays them."""

    def build(self, source: ModuleSource) -> BuiltModule:
        """The module and its inputs without their data (on the meta device), as ``plan`` takes them."""

    def plan(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], request: ModuleRequest) -> ModulePlan:
        """The plan of least predicted step time that fits."""

    def apply(self, module: Any, plan: ModulePlan, options: Mapping[str, Any]) -> Any:
        """The module, placed and running as planned."""

    def verify(self, plan: ModulePlan, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replay on the CPU against the unsharded module: figures by name."""
