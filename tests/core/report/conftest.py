"""A console to print reports on; makes ``report_builders`` importable."""

from __future__ import annotations

import io

import pytest
from rich.console import Console


@pytest.fixture
def console_at():
    """A plain console of a given width, and what was printed on it."""

    def build(width: int) -> tuple[Console, io.StringIO]:
        out = io.StringIO()
        return Console(file=out, width=width, highlight=False, markup=False, emoji=False, color_system=None), out

    return build
