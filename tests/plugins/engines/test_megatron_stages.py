"""Stages chosen one by one in Megatron's launch files: the layout, and recompute by stage."""

from __future__ import annotations

import re
import subprocess

import pytest
from attrs import evolve

from autoparallel_core.cluster import build_cluster
from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.models import load_model
from autoparallel_core.problem import make_problem
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import parse_strategy
from autoparallel_core.spec.workload import TrainingWorkload


def problem(n_gpus: int) -> Problem:
    h = host()
    work = TrainingWorkload(seq_len=4096, global_batch_size=256)
    arch = load_model("Qwen/Qwen3-8B", h)
    return make_problem(arch, build_cluster(h.gpu("H100"), n_gpus), work, engine="megatron", host=h)


STRATEGY = parse_strategy("tp2 pp4 dp4 zero1 mbs1 recompute=full")
OPTIONS = {"chunks": (8, 10, 10, 8), "recompute_first": (5, 2, 0, 0), "model": "Qwen/Qwen3-8B"}


@pytest.mark.parametrize(("node", "layers"), [(0, 5), (1, 2), (2, 0), (3, 0)])
def test_every_node_recomputes_what_its_stage_does(tmp_path, node: int, layers: int) -> None:
    files = host().export(problem(32), STRATEGY, OPTIONS)
    assert files is not None
    script = files["launch.sh"].replace("torchrun", "printf '%s\\n' ")
    (tmp_path / "launch.sh").write_text(script)
    env = {"NODE_RANK": str(node), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", str(tmp_path / "launch.sh")], capture_output=True, text=True, check=True, env=env)
    words = done.stdout.split("\n")
    if layers:
        assert words[words.index("--recompute-num-layers") + 1] == str(layers)
        assert words[words.index("--recompute-method") + 1] == "block"
    else:
        assert not [w for w in words if w.startswith("--recompute")]
    assert "--pipeline-model-parallel-layout" in words
    layout = words[words.index("--pipeline-model-parallel-layout") + 1]
    assert layout == "Etttttttt|(tttttttttt|)*2ttttttttL"


@pytest.mark.parametrize(("rank", "layers"), [(0, 5), (7, 5), (8, 2), (31, None)])
def test_the_python_configuration_reads_its_rank(rank: int, layers: int | None, monkeypatch) -> None:
    files = host().export(problem(32), STRATEGY, OPTIONS)
    assert files is not None
    lines = [x for x in files["bridge.py"].splitlines() if x.strip().startswith(("recompute =", "cfg.model.recompute"))]

    class Config:
        class model:  # noqa: N801
            pass

    monkeypatch.setenv("RANK", str(rank))
    import os

    exec("\n".join(x.strip() for x in lines), {"cfg": Config, "os": os})
    assert Config.model.recompute_num_layers == layers
    assert Config.model.recompute_granularity == ("full" if layers else None)


def test_the_same_everywhere_needs_no_table() -> None:
    files = host().export(problem(32), STRATEGY, {"model": None})
    assert files is not None
    assert "RECOMPUTE_BY_STAGE" not in files["launch.sh"]
    assert "--recompute-method uniform" in files["launch.sh"]
    none = host().export(problem(32), STRATEGY, OPTIONS | {"recompute_first": (0, 0, 0, 0)})
    assert none is not None
    assert not re.search("recompute-(method|num)", none["launch.sh"])


def test_stages_that_share_a_node_are_refused_with_a_reason() -> None:
    with pytest.raises(SpecError, match="stages of 4 GPUs share nodes of 8"):
        host().export(problem(16), evolve(STRATEGY, dp=2, shard=2), OPTIONS)
