"""Skips the group when the reference library is not installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    missing = any(find_spec(name) is None for name in ("torch", "transformers"))
    return True if missing and collection_path.suffix == ".py" and collection_path.name.startswith("test_") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.oracle)
