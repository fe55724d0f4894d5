"""Hardware plugin: one accelerator, read from a data file."""

from collections.abc import Sequence
from importlib.resources import files

from autoparallel_core.gpu_files import read_gpus
from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.cluster import Gpu


@hookimpl
def gpus() -> Sequence[Gpu]:
    """Every ``.toml`` file of the folder ``data``."""
    return read_gpus(files(__name__) / "data")
