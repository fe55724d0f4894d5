"""What the keys of a plan are called in tables and on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.report import format as fmt

COST = {
    "compute_s": "computation",
    "exchange_s": "activations moved",
    "weights_s": "weights gathered, gradients reduced",
    "update_s": "optimizer update",
    "hidden_s": "of it hidden by overlap",
    "bubble_s": "pipeline filling and draining",
}
KINDS = {"compute": "computation", "exchange": "activations moved", "weights": "weights", "update": "optimizer update"}
MEMORY = {
    "parameters": "parameters",
    "optimizer": "optimizer state",
    "gradients": "gradients",
    "inputs": "inputs and buffers",
    "saved": "activations kept for the backward",
    "temporary": "temporaries",
}
COLLECTIVES = {
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}


def mesh(sizes: Mapping[str, int]) -> str:
    """``dp=32,tp=8``."""
    return ",".join(f"{n}={s}" for n, s in sizes.items())


def shape(sizes: Sequence[int]) -> str:
    """``4096×1024``."""
    return "×".join(map(str, sizes)) or "scalar"


def placed(placements: Sequence[str]) -> str:
    """The placements of several tensors."""
    return ", ".join(p or "–" for p in placements) or "–"


def search(found: Mapping[str, Any]) -> str:
    """How good the plan is known to be."""
    gap = found["gap"]
    if gap <= 1e-6:
        return "proven best for this cost model" if found["exact"] else "at its lower bound"
    how = "" if found["exact"] else "; some programs stopped at the time limit"
    return f"within {fmt.percent(gap)} of the lower bound {fmt.seconds(found['bound_s'])}{how}"


def unruled(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence per operator that nobody gave a rule."""
    return [
        f"{u['op']} ({u['name']}, {fmt.plural(u['copies'], 'time')}) has no sharding rule: it runs whole on every GPU and takes "
        f"{fmt.seconds(u['seconds'])}; register one (docs/how-to/plan-a-module.md)"
        for u in entries
    ]


def added(s: float) -> str:
    """``+1.2 ms``."""
    return f"+{fmt.seconds(s)}" if s > 0 else "nothing" if s == 0 else f"−{fmt.seconds(-s)}"
