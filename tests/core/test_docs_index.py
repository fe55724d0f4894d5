"""Every page is reachable from the documentation's index, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def links(page: Path) -> set[Path]:
    found = re.findall(r"\]\((?!https?:|#)([^)#\s]+\.\w+)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in found}


def test_every_page_is_in_the_index():
    pages = {p.resolve() for p in DOCS.rglob("*.md")} - {(DOCS / "README.md").resolve()}
    assert pages - links(DOCS / "README.md") == set()


def test_no_link_is_broken():
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]
    broken = {f"{page.name} -> {target}" for page in pages for target in links(page) if not target.exists()}
    assert broken == set()
