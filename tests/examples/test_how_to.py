"""The how-to pages quote the example distribution: every block of code is in the file it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "autoparallel-example"
PAGES = sorted((ROOT / "docs" / "how-to").glob("write-*.md"))
BLOCK = re.compile(r"(?:<!-- from: (?P<file>\S+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)```", re.DOTALL)


def test_there_is_a_page_for_each_kind() -> None:
    assert [p.name for p in PAGES] == ["write-a-gpu-plugin.md", "write-a-model-plugin.md", "write-an-engine-plugin.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_code_is_quoted_from_the_example(page: Path) -> None:
    blocks = list(BLOCK.finditer(page.read_text(encoding="utf-8")))
    code = [b for b in blocks if b["language"] in {"python", "toml"}]
    assert len(code) >= 4
    for block in code:
        assert block["file"], f"{page.name}: this block names no file:\n{block['code']}"
        source = (EXAMPLE / block["file"]).read_text(encoding="utf-8")
        assert block["code"].strip() in source, f"{page.name}: not in {block['file']}:\n{block['code']}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
