"""Launch files for a cluster of two kinds of GPU say which node ranks must be of which kind."""

from __future__ import annotations

import re


def test_launch_files_say_which_nodes_come_first(cli, model, tmp_path):
    toml = tmp_path / "cluster.toml"
    toml.write_text('[[gpus]]\ntype = "H100"\nnodes = 1\n[[gpus]]\ntype = "A100"\nnodes = 1\n', encoding="utf-8")
    out = tmp_path / "launch"
    ran = cli(
        "--model-path", model(), "--cluster", str(toml), "--batch-size", "64", "--top", "1", "--json", "--export", str(out)
    )  # fmt: skip
    stages = ran.json["strategies"][0]["stages"]
    assert len({s["gpu"] for s in stages}) == 2
    head = " ".join((out / "launch.sh").read_text(encoding="utf-8").replace("\n# ", " ").split())
    said = re.search(r"Give nodes their rank by kind of GPU: 0 is (\S+), 1 is (\S+)\.", head)
    assert said
    assert [said[1], said[2]] == list(dict.fromkeys(s["gpu"] for s in stages))
