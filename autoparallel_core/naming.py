"""Names that people type: the near ones of a wrong one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LISTED, _OF_MANY = 24, 5
"""Names listed in full when none is near, and of a longer list, which helps nobody in one sentence."""


def near_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Known names like ``name`` (case-insensitive), nearest first: similar spelling, then those that contain it."""
    by_folded: dict[str, str] = {}
    for k in sorted(known):
        by_folded.setdefault(k.casefold(), k)
    wanted = name.casefold()
    near = get_close_matches(wanted, by_folded, n=limit, cutoff=0.6)
    if wanted:
        near += [k for k in by_folded if wanted in k and k not in near]
    return [by_folded[k] for k in near[:limit]]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the near names, else the known ones.

    Example::

        >>> did_you_mean("T-100", ["T-1000", "X-1"])
        'did you mean T-1000?'
    """
    names = sorted(set(known))
    if near := near_names(name, names):
        *first, last = near
        return f"did you mean {', '.join(first)} or {last}?" if first else f"did you mean {last}?"
    if not names:
        return "none is installed"
    if len(names) <= LISTED:
        return f"known: {', '.join(names)}"
    return f"known: {', '.join(names[:_OF_MANY])} and {len(names) - _OF_MANY} more"
