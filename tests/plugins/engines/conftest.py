"""Fixtures of the engines' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch_files import Checker, make_checker


@pytest.fixture
def checker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checker:
    return make_checker(tmp_path, capsys)
