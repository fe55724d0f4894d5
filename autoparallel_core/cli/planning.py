"""Which planner the flags ask for, and with which options."""

from __future__ import annotations

import argparse
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_core.search.api import SEVERAL_KINDS


def planner_of(args: argparse.Namespace, *, shardings: bool = False) -> tuple[str | None, dict[str, Any]]:
    """The planner's name (None: the problem decides) and its options; ``shardings``: whether they can be shown.

    Raises:
        SpecError: ``--granularity`` with another planner than the one that knows it, or for an answer that is no plan.
    """
    granularity = getattr(args, "granularity", None)
    if granularity is None:
        return args.planner, {}
    if args.planner not in {None, SEVERAL_KINDS}:
        raise SpecError(f"--granularity belongs to --planner {SEVERAL_KINDS}, and --planner is {args.planner}")
    if granularity == "operator" and not shardings:
        raise SpecError("--granularity operator answers with shardings, which only the bare form shows and no launch file holds")
    return SEVERAL_KINDS, {"granularity": granularity}
