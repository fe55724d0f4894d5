"""NVIDIA GPU presets; the figures and their sources are the files under ``data/``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from autoparallel_core.gpu_files import read_gpus
from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.cluster import Gpu


@hookimpl
def gpus() -> Sequence[Gpu]:
    """The presets of this plugin, read once."""
    return _presets()


@cache
def _presets() -> tuple[Gpu, ...]:
    return read_gpus(files(__name__) / "data")
