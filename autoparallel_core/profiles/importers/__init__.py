"""Measurements that other tools wrote, as profiles. Each importer refuses what it cannot understand."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.files import Profile, read_profile
from autoparallel_core.spec.cluster import Gpu

FORMATS = ("nccl-tests", "csv", "torch-benchmark")
"""Names of the single-file formats, as ``load`` takes them in front of a file: ``csv:gemm.txt``."""
TABLES_PREFIX = "aiconfigurator"


def load(source: str, gpu: Gpu) -> Profile:
    """Measured data of any known kind.

    Args:
        source: a profile file (``.json``); ``aiconfigurator:SYSTEM/FRAMEWORK[/VERSION]`` for an installed package of
            tables; a folder of such tables; the text that nccl-tests or rccl-tests print; a ``.csv``; a pickled list of
            ``torch.utils.benchmark`` measurements (``.pkl``). ``nccl-tests:``, ``csv:`` or ``torch-benchmark:`` in front
            of a file settles its format.
        gpu: the GPU that sources which name none speak for, and whose peaks they are held against.

    Raises:
        SpecError: there is no such file, its format is not recognised, or it says something impossible.
    """
    prefix, _, rest = source.partition(":")
    if prefix == TABLES_PREFIX:
        from autoparallel_core.profiles.importers.operator_tables import installed_tables

        return installed_tables(rest, gpu)
    form, path = (prefix, Path(rest).expanduser()) if prefix in FORMATS else (None, Path(source).expanduser())
    if form is None and path.is_dir():
        from autoparallel_core.profiles.importers.operator_tables import folder_of_tables

        return folder_of_tables(path, gpu)
    if form is None and path.suffix == ".json":
        return read_profile(path)
    if not path.is_file():
        raise SpecError(f"profile {path}: no such file")
    return evolve(_import(form or _recognise(path), path, gpu), path=str(path))


def _import(form: str, path: Path, gpu: Gpu) -> Profile:
    if form == "csv":
        from autoparallel_core.profiles.importers.csv_columns import read_csv

        return read_csv(path, gpu)
    if form == "torch-benchmark":
        from autoparallel_core.profiles.importers.torch_benchmark import read_measurements

        return read_measurements(path, gpu)
    from autoparallel_core.profiles.importers.nccl_tests import read_nccl_tests

    return read_nccl_tests(path, gpu)


def _recognise(path: Path) -> str:
    """The format by name or by what the text holds. Raises SpecError."""
    if path.suffix.lower() == ".csv":
        return "csv"
    if path.suffix.lower() in {".pkl", ".pickle"}:
        return "torch-benchmark"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    if "algbw" in text and "busbw" in text:
        return "nccl-tests"
    known = ", ".join((".json", *FORMATS))
    raise SpecError(f"profile {path}: its format is not recognised; known: {known} (put e.g. csv: in front of the name)")
