"""Every pipeline stage of one deployment: which layers it holds and what lies in its memory.

The search looks at the stage with the least room for the cache, because that one decides; whoever reads one plan wants
to see the split that the engine makes and the room of the others, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from autoparallel_core.cost.serving_memory import serving_stages
from autoparallel_core.search.result import Plan, StageMemory

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.problem import Problem


def with_every_stage(problem: Problem, plan: Plan, host: Host) -> Plan:
    """The plan of a deployment with the memory of all its stages.

    The engine counts pages on the deciding stage; the others keep as many, each of its own layers' size.
    """
    stages, decides = serving_stages(problem, plan.strategy, host), plan.memory.deciding
    (here,) = plan.memory.stages
    longest = float(max(problem.inference.context_tokens, problem.inference.max_model_len or 0))
    sequence = stages.cache.per_sequence(longest)[0]
    cached = decides.bytes.get("kv_cache", 0.0)

    def memory(p: int, layers: int) -> StageMemory:
        if p == decides.stage:
            return evolve(here, layers=layers)
        causes = {k: float(v[0, p]) for k, v in stages.causes.items() if v[0, p]}
        if cached and sequence[p]:
            causes["kv_cache"] = cached * float(sequence[p] / sequence[decides.stage])
        return StageMemory(p, layers, causes, {})

    every = tuple(memory(p, n) for p, n in enumerate(stages.layers))
    return evolve(plan, memory=evolve(plan.memory, stages=every, least_room=decides.stage))
