"""Which planner the flags ask for, and with which options."""

from __future__ import annotations

import argparse
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_core.search.api import SEVERAL_KINDS


def planner_of(args: argparse.Namespace) -> tuple[str | None, dict[str, Any]]:
    """The planner's name (None: the problem decides) and its options.

    Raises:
        SpecError: ``--granularity`` with another planner than the one that knows it.
    """
    granularity = getattr(args, "granularity", None)
    if granularity is None:
        return args.planner, {}
    if args.planner not in {None, SEVERAL_KINDS}:
        raise SpecError(f"--granularity belongs to --planner {SEVERAL_KINDS}, and --planner is {args.planner}")
    return SEVERAL_KINDS, {"granularity": granularity}
