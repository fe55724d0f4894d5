"""The Python API's page runs from top to bottom, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import autoparallel_core as ap

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python-api.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), names)
    result = names["result"]
    assert isinstance(result, ap.search.result.SearchResult)
    assert len(result.plans) == 3
    assert all(p.strategy.world == 64 for p in result.plans)
    throughputs = [p.throughput for p in result.plans]
    assert throughputs == sorted(throughputs, reverse=True)
    assert len(names["figures"]) == 3
    said = capsys.readouterr().out
    assert "heads % tp: " in said
    assert "tp 3" in said


def test_every_public_name_is_on_the_page_or_a_type_that_plugins_use() -> None:
    page = PAGE.read_text(encoding="utf-8")
    errors = {n for n in ap.__all__ if isinstance(getattr(ap, n), type) and issubclass(getattr(ap, n), ap.AutoparallelError)}
    for_plugins = {"hookimpl", "EngineSpec", "Rule", "Space", "LocalPlugin", "PluginInfo", "Problem", "explain_strategy"}
    missing = [n for n in ap.__all__ if n not in errors | for_plugins and not re.search(rf"\b{n}\b", page)]
    assert missing == []
