"""All placements and states of a mesh in one program."""

from __future__ import annotations

from attrs import define, field

from autoparallel_core.solve.coupled import Answer
from autoparallel_pytorch.formulate import Formulation
from autoparallel_pytorch.graph import Graph
from autoparallel_pytorch.recompute import States, expand, memory_of, memory_rows, split
from autoparallel_pytorch.search import GAP, Choice, Objective, Point, assignment, solve_program


@define(eq=False)
class Exact:
    """See :class:`~.search.Priced`."""

    form: Formulation
    graph: Graph
    states: States
    objective: Objective
    time_limit_s: float
    _expanded: Formulation | None = field(default=None)
    _last: Answer | None = field(default=None)

    def solve(self, share: float, price: float, start: Point | None) -> Point:
        whole = self.expanded
        rows = memory_rows(self.states)
        problem = assignment(whole, self.objective.prices(share), {i: price * r for i, r in rows.items()} if price else None)
        given = None if start is None else self._joined(start.choice)
        answer = solve_program(problem, whole, time_limit_s=self.time_limit_s, start=given, last=self._last)
        self._last = answer
        choice = answer.choice
        assert choice is not None, "an answer without a choice was raised"
        placements, states = split(self.states, whole, choice)
        keys = [slot.key for slot in self.form.slots]
        found = Choice(
            {key: slot.picks[k] for key, slot, k in zip(keys, self.form.slots, placements, strict=True)},
            dict(zip(keys, states, strict=True)),
        )
        return Point(
            share, price, found, whole.seconds(choice), memory_of(whole, self.states, choice), answer.bound, answer.gap <= GAP
        )

    @property
    def expanded(self) -> Formulation:
        if self._expanded is None:
            self._expanded = expand(self.form, self.graph, self.states)
        return self._expanded

    def _joined(self, choice: Choice) -> tuple[int, ...] | None:
        """Option numbers of the expanded problem; None when the choice is not among them."""
        out = []
        for slot, z in zip(self.form.slots, self.states.of, strict=True):
            pick, state = choice.picks.get(slot.key), choice.states.get(slot.key)
            if pick not in slot.picks or state not in z:
                return None
            out.append(z.index(state) * len(slot.picks) + slot.picks.index(pick))
        return tuple(out)
