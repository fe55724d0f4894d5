"""The example of the how-to page is a cluster that can be read."""

from __future__ import annotations

import re
from pathlib import Path

from autoparallel_core.cluster import read_cluster_toml
from autoparallel_core.host import Host

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "describe-a-cluster.md"


def test_the_example_of_the_page(tmp_path):
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    file = tmp_path / "cluster.toml"
    file.write_text(example)
    c = read_cluster_toml(file, Host())
    assert [(t.name, t.ranks, t.bytes_per_s) for t in c.tiers] == [
        ("scale-up", 8, 450e9),
        ("leaf", 256, 50e9),
        ("spine", 1024, 25e9),
    ]
    assert c.gpu.memory_bytes == 85e9
