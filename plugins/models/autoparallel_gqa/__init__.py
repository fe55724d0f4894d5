"""Model plugin: softmax attention with multi-head, grouped or single keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.arch import Block, Layer
from autoparallel_core.spec.config import ConfigView
from autoparallel_gqa.altup import ends
from autoparallel_gqa.attention import attention
from autoparallel_gqa.families import family


@hookimpl
def parse_family(config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
    return family(config)


@hookimpl
def parse_mixer(config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
    return attention(config, layer)


@hookimpl
def parse_extras(config: ConfigView) -> Mapping[str, Sequence[Layer]] | None:
    return ends(config)
