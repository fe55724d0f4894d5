"""Model plugin: well-known models by name, as architecture facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.hookspecs import hookimpl


@hookimpl
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    from autoparallel_catalogue.expand import configs

    return configs()
