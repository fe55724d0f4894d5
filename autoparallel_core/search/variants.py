"""Near-identical strategies folded into one answer, so that a top ten holds ten ideas.

Strategies of the same degrees (tp, pp, cp, ep, etp, dp, attn_dp) whose speed differs by less than ``ALIKE`` differ only in
virtual stages, micro-batch, ZeRO stage, recompute or offload. One of them stands for all: one that leaves room in
memory before one that is tight, then the best ranked. Recomputation that frees no memory is no idea at all: a plan that
differs from a better one in nothing else, and allocates as much, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from autoparallel_core.search.result import Plan

ALIKE = 1e-2
FREES = 1e-3
"""Share of the allocated memory below which recomputation frees nothing."""
SEARCHED = 8
"""Plans looked at per plan shown."""
_DEGREES = ("tp", "pp", "cp", "ep", "etp", "dp", "attn_dp")


def fold(plans: Sequence[Plan], top: int) -> list[Plan]:
    """At most ``top`` plans of the ranked ``plans``, each naming those it stands for; the order is kept."""
    groups: list[list[Plan]] = []
    for plan in plans:
        if any(_wasted(better, plan) for group in groups for better in group):
            continue
        home = next((g for g in groups if _alike(g[0], plan)), None)
        if home is not None:
            home.append(plan)
        else:
            groups.append([plan])
    out = []
    for group in groups[:top]:
        chosen = next((p for p in group if p.verdict == "fits"), group[0])
        out.append(evolve(chosen, variants=tuple(p.strategy for p in group if p is not chosen)))
    return out


def _alike(leader: Plan, plan: Plan) -> bool:
    same = all(getattr(leader.strategy, d) == getattr(plan.strategy, d) for d in _DEGREES)
    a, b = leader.cost.total_s, plan.cost.total_s
    return same and abs(leader.throughput - plan.throughput) <= ALIKE * leader.throughput and abs(a - b) <= 10 * ALIKE * a


def _wasted(better: Plan, plan: Plan) -> bool:
    """Whether ``plan`` is the better ranked one with more recomputation and no less memory allocated."""
    a, b = better.strategy, plan.strategy
    if a.recompute == b.recompute or plan.throughput > better.throughput:
        return False
    same = evolve(b, recompute=a.recompute, recompute_layers=a.recompute_layers) == a
    return same and plan.memory.allocated_bytes >= (1 - FREES) * better.memory.allocated_bytes
