"""The legal strategies nearest to one that is not: what to run instead.

Distance is counted in doublings along each axis, so that tp 8 → 4 is as far as ep 16 → 32; the data-parallel
degree, which only fills the world, counts little, and switches count as one doubling. So does exchanging ep for etp:
the experts stay on the same ranks. GPUs that come to be idle, or to be in use, count as a degree does.

Axis legend: S strategies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy, StrategyBatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from autoparallel_core.host import Host
    from autoparallel_core.spec.problem import Problem

_DEGREES = ("tp", "pp", "cp", "vpp", "attn_dp", "mbs")
_MAKEUP = 0.125
"""Weight of the data-parallel degree and the shard group, which follow from the others."""
_CONSIDERED = 64
"""So many of the nearest are priced to find those that fit."""


def nearest_fitting(problem: Problem, start: Strategy, host: Host, *, count: int = 3) -> list[Strategy]:
    """As ``nearest_legal``, but of the nearest 64 those first that fit."""
    import numpy as np

    from autoparallel_core.search.evaluate import evaluate

    near = [s for s in nearest_legal(problem, start, host, count=_CONSIDERED) if s != start]
    if near and not problem.cluster.kinds:
        fits = evaluate(problem, StrategyBatch.of(near), host).fits
        near = [near[i] for i in np.argsort(~fits, kind="stable")]
    return near[:count]


def nearest_legal(problem: Problem, start: Strategy, host: Host, *, count: int = 3) -> list[Strategy]:
    """Up to ``count`` strategies of the engine's space that break none of its rules, nearest first.

    The rest of the plan (micro-batch, ZeRO stage, recompute, offload) is kept where that leaves any.
    """
    import numpy as np

    from autoparallel_core.search.rules import rules_for
    from autoparallel_core.search.space import enumerate_space

    space, rules = host.search_space(problem) or Space(), rules_for(problem, host)
    for narrowed in _narrowed(problem, space, start):
        best: StrategyBatch | None = None
        for batch in enumerate_space(problem, narrowed, rules):
            both = batch if best is None else StrategyBatch.concat([best, batch])
            far = distance(both, start, problem.cluster.n_gpus)
            best = both.take(np.argsort(far, kind="stable")[:count])
        if best is not None and len(best):
            return list(best)
    return []


def _narrowed(problem: Problem, space: Space, start: Strategy) -> list[Space]:
    """The space with the start's options, then with its micro-batch only, then whole."""
    if problem.mode == "inference":
        return [space]
    options = evolve(
        space,
        mbs=(start.mbs,),
        zero=(start.zero,),
        recompute=(RECOMPUTE[start.recompute],),
        offload=(start.offload,),
        partial_recompute=start.recompute_layers > 0 and space.partial_recompute,
    )
    return [options, evolve(options, zero=space.zero, mbs=()), evolve(space, partial_recompute=False)]


def distance(batch: StrategyBatch, start: Strategy, n_gpus: int | None = None) -> NDArray[np.float64]:
    """Doublings between each strategy and the start, of which no more than ``n_gpus`` are in use: float64[S]."""
    import numpy as np

    in_use = min(start.world, n_gpus or start.world)
    total = np.abs(np.log2(batch.tp * batch.cp * batch.pp * batch.dp * batch.attn_dp / in_use))
    for name in _DEGREES:
        total += np.abs(np.log2(batch.columns[name] / getattr(start, name)))
    exchanged = batch.ep * batch.etp == start.ep * start.etp
    moved = np.abs(np.log2(batch.ep / start.ep)) + np.abs(np.log2(batch.etp / start.etp))
    total += np.where(exchanged, np.minimum(moved, 1.0), moved)
    for name in ("dp", "shard"):
        total += _MAKEUP * np.abs(np.log2(batch.columns[name] / max(getattr(start, name), 1)))
    for name in ("sp", "zero", "recompute", "offload"):
        total += batch.columns[name] != getattr(start, name)
    total += _MAKEUP * (batch.recompute_layers != start.recompute_layers)
    return total
