"""What each repeated layer recomputes: layers share their placements, but not all of them need to recompute as much.

With the placements of a plan fixed, the states alone make a small problem; lower prices of memory recompute less. Of two
neighbouring patterns, one that fits and one that does not, the first layers take the one that fits and the others the
cheaper one, as many as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import evolve

from autoparallel_core.solve.couplings import Coupling
from autoparallel_pytorch.exact import Exact
from autoparallel_pytorch.formulate import Formulation
from autoparallel_pytorch.graph import Graph
from autoparallel_pytorch.layer_numbers import Layers
from autoparallel_pytorch.recompute import AGAIN, States
from autoparallel_pytorch.regions import Classes
from autoparallel_pytorch.search import Objective

_HALVINGS = 10


def patterns(
    form: Formulation,
    graph: Graph,
    classes: Classes,
    states: States,
    objective: Objective,
    placements: Sequence[int],
    price: float,
    share: float,
) -> list[frozenset[int]]:
    """Sets of operators that run again, from the one at ``price`` down to the one that recomputes least."""
    slots, kept = [], []
    for slot, k, held in zip(form.slots, placements, states.kept_bytes, strict=True):
        cost = {kind: c[k : k + 1] for kind, c in slot.cost.items()}
        slots.append(evolve(slot, picks=slot.picks[k : k + 1], outs=slot.outs[k : k + 1], ins=slot.ins[k : k + 1], cost=cost))
        kept.append(held[k : k + 1])
    edges = {(u, v, kind): Coupling.of(np.array([[t[placements[u], placements[v]]]])) for (u, v, kind), t in form.edges.items()}
    fixed = Formulation(slots, form.index, edges, form.inputs, form.weight)
    problem = Exact(fixed, graph, evolve(states, kept_bytes=tuple(kept)), objective, 10.0)
    found: list[frozenset[int]] = []
    for i in range(_HALVINGS):
        point = problem.solve(share, price / 2**i if i < _HALVINGS - 1 else 0.0, None)
        again = {key[1] for key, s in point.choice.states.items() if key[0] == "op" and s == AGAIN}
        nodes = frozenset(n.id for n in graph.nodes if classes.of[n.id] in again)
        if not found or found[-1] != nodes:
            found.append(nodes)
    return found


def mixed(more: frozenset[int], less: frozenset[int], layers: Layers, first: int) -> frozenset[int]:
    """``more`` in the first layers and outside of layers, ``less`` in the others."""
    return frozenset(n for n in more if layers.of[n] < first) | frozenset(n for n in less if layers.of[n] >= first)


def best_mix(found: Sequence[frozenset[int]], layers: Layers, fits: Callable[[frozenset[int]], bool]) -> frozenset[int] | None:
    """The set that recomputes least among the patterns, mixed over layers, that fits; None when none does.

    ``found`` is ordered from most to least recomputation.
    """
    last = None
    for i, pattern in enumerate(found):
        if not fits(pattern):
            if last is None:
                return None
            low, high = 0, layers.n  # with ``high`` layers of the fitting pattern it fits
            while low < high:
                middle = (low + high) // 2
                if fits(mixed(found[i - 1], pattern, layers, middle)):
                    high = middle
                else:
                    low = middle + 1
            return mixed(found[i - 1], pattern, layers, high) if high < layers.n else last
        last = pattern
    return last
