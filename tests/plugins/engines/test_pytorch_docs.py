"""The how-to page's blocks run in order, and what it quotes is in the example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "modules-that-plan-well.md"
BLOCK = re.compile(r"(?:<!-- from: (?P<file>\S+) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


def test_the_page_of_modules_runs() -> None:
    blocks = list(BLOCK.finditer(PAGE.read_text(encoding="utf-8")))
    assert len(blocks) == 6
    names: dict[str, Any] = {}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        for block in blocks:
            if block["file"]:
                source = (ROOT / "examples" / "autoparallel-example" / block["file"]).read_text(encoding="utf-8")
                assert block["code"] in source
            else:
                exec(compile(block["code"], PAGE.name, "exec"), names)
        assert names["plan"].document["unruled"] == []
        assert {p.grad.device_mesh.ndim for p in names["model"].parameters()} == {2}
    finally:
        dist.destroy_process_group()
