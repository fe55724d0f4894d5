"""What stands beside the decoder stack: multi-token-prediction blocks, vision and audio towers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Layer
from autoparallel_core.spec.config import ConfigView


@hookimpl
def parse_extras(config: ConfigView) -> Mapping[str, Sequence[Layer]] | None:
    from autoparallel_extras import mtp, reading

    extras: dict[str, Sequence[Layer]] = {}
    found = reading.find_towers(config)
    if found:
        extras["towers"] = reading.tower_layers(found)
    if config.trait("mtp") != "own" and (blocks := mtp.layers(config)):
        extras["mtp"] = blocks
    return extras or None
