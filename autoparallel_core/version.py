"""This distribution's version, read from its installed metadata."""

from __future__ import annotations

from functools import cache

DISTRIBUTION = "autoparallel-advisor"


@cache
def version() -> str:
    """For example ``0.1.0``; ``0+unknown`` when the sources run without being installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+unknown"
