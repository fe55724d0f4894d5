"""Fixtures of the tests with the engines' own parsers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """The files of an export, in a directory."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        return tmp_path

    return write
