"""Model plugin: dense feed-forward layers, gated (three matrices) or plain (two)."""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.config import ConfigView
from autoparallel_dense.mlp import dense


@hookimpl
def parse_ffn(config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
    return dense(config, layer)
