"""What launch files say: the result of an engine's ``read`` hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import Strategy


@frozen
class Refusal:
    """A combination that the engine turns down while it reads its flags, before any strategy exists."""

    rule: str
    sentence: str
    source: str


@frozen
class Launch:
    """One launch of one engine, as its files state it. What they leave open is None or absent."""

    engine: str
    form: str
    """How it was written, in words: ``"launch script"``, ``"YAML configuration"`` …"""
    strategy: Strategy | None = None
    """None while the model and the number of GPUs are not known (the hook was called without a problem)."""
    cut: StageCut | None = None
    """The strategy's pipeline stages, where the files state other than the usual ones."""
    version: str | None = None
    n_gpus: int | None = None
    gpus_per_node: int | None = None
    model: str | None = None
    """Path or public name that the engine loads."""
    model_fields: Mapping[str, int] = field(factory=dict)
    """Sizes of a model that the flags describe themselves, by the names of the command's flags (``hidden_size`` …)."""
    workload: Mapping[str, Any] = field(factory=dict)
    """Fields of TrainingWorkload or InferenceWorkload."""
    software: Mapping[str, Any] = field(factory=dict)
    """Fields of Software."""
    longest_request: int | None = None
    """Tokens of one request that the engine insists its cache can hold, else it does not start."""
    loading_host_bytes: float = 0.0
    """Host memory of one node that loading the model takes, where the files have every process load a whole copy."""
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    """How the files were understood where that is not obvious."""
    unmodelled: tuple[str, ...] = ()
    """Flags that change memory or speed and that the prediction leaves out, one sentence each."""
    unknown: tuple[str, ...] = ()
    """Flags or keys that this reader does not know."""
    unset: tuple[str, ...] = ()
    """Variables without a value in the files, where a value was needed."""
