"""What of an uneven plan the problem's engine can run, and the words for it."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.search.common_rules import parse_version
from autoparallel_core.spec.problem import Ability, Problem


@frozen
class Abilities:
    """Of one engine version."""

    uneven: bool
    recompute: Literal["layer", "stage", "same"]
    host_activations: bool
    """Activations in host memory: the engine can, and the user lets it."""
    words: tuple[str, ...]
    """How the engine is told, or why the plan keeps to less."""


def abilities_of(problem: Problem) -> Abilities:
    """Read the engine's abilities at the problem's version.

    Raises:
        SpecError: activations may go to host memory, and the engine cannot send them there.
    """
    engine, version = problem.engine, problem.engine_version
    words = []
    wanted, away = problem.training.activation_cpu_offload, _ability(problem, "host_activations")
    if wanted and away is None:
        raise SpecError(f"{engine.name} {version} keeps all activations on the GPU; leave --activation-offload out")
    if wanted and away is not None:
        words.append(f"activations in host memory: {away.how}")
    uneven = _ability(problem, "uneven_stages")
    if uneven is not None:
        words.append(f"stages of different size: {uneven.how}")
    elif (known := engine.abilities.get("uneven_stages")) is not None:
        words.append(f"{engine.name} {version} cuts stages evenly; from {known.since} on {known.how} would set them")
    else:
        words.append(f"{engine.name} cuts stages evenly, so only recompute is chosen by stage here")
    by_layer, by_stage = _ability(problem, "recompute_by_layer"), _ability(problem, "recompute_by_stage")
    if by_layer is not None:
        words.append(f"recompute by layer: {by_layer.how}")
        return Abilities(uneven is not None, "layer", wanted, tuple(words))
    if by_stage is not None:
        words.append(f"recompute by stage: {by_stage.how}")
        return Abilities(uneven is not None, "stage", wanted, tuple(words))
    words.append(f"{engine.name} recomputes the same number of layers on every stage")
    return Abilities(uneven is not None, "same", wanted, tuple(words))


def _ability(problem: Problem, name: str) -> Ability | None:
    ability = problem.engine.abilities.get(name)
    if ability is None or parse_version(problem.engine_version) < parse_version(ability.since):
        return None
    return ability
