"""Carry a plan's choices over to another problem of the same structure: a reduced copy of the module, on a smaller mesh."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.formulate import Formulation
from autoparallel_pytorch.graph import BACKWARD, Graph
from autoparallel_pytorch.placement import text

_NUMBERS = re.compile(r"(?<=\.)\d+(?=\.|$)")


def choices(document: Mapping[str, Any], graph: Graph, form: Formulation) -> tuple[int, ...]:
    """Option per slot, the same placements as in the plan wherever the plan has that operator.

    Repeated layers are matched by name with their numbers left out; operators that the plan lacks (casts of another dtype)
    follow the first of their inputs' placements that they can.

    Raises:
        SpecError: a placement of the plan is no option here.
    """
    planned = {(_plain(o["name"]), o["op"]): (tuple(o["out"]), tuple(o["in"])) for o in document["operators"]}
    hubs = {(h["kind"], _plain(h["of"]), h["output"], h["phase"]): h["placement"] for h in document["hubs"]}
    found = []
    for slot in form.slots:
        node = graph.nodes[slot.node]
        kind, number, output, phase = slot.key
        if kind == "op":
            want = planned.get((_plain(node.name), node.op))
            options = [(tuple(map(text, o)), tuple(map(text, i))) for o, i in zip(slot.outs, slot.ins, strict=True)]
            if want is None:
                found.append(0)
                continue
        else:
            key = (
                kind,
                _plain(node.name),
                number if kind == "result" else output,
                "backward" if phase == BACKWARD else "forward",
            )
            one = hubs.get(key)
            options = [((text(o[0]),), ()) for o in slot.outs]
            if one is None:
                found.append(0)
                continue
            want = ((one,), ())
        if want not in options:
            raise SpecError(
                f"{node.name}: placement {', '.join(want[0])} of the plan is not possible in the reduced copy; give a larger one"
            )
        found.append(options.index(want))
    return tuple(found)


def recomputed(document: Mapping[str, Any], graph: Graph) -> frozenset[int]:
    """The operators that run again, where any layer's do in the plan."""
    names = {_plain(n) for n in document["recompute"]}
    return frozenset(n.id for n in graph.nodes if _plain(n.name) in names)


def _plain(name: str) -> str:
    module, slash, operator = name.partition("/")
    return _NUMBERS.sub("*", module) + slash + operator
