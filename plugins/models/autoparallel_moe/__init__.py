"""Model plugin: mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.config import ConfigView
from autoparallel_moe.experts import experts


@hookimpl
def parse_ffn(config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
    return experts(config, layer)
