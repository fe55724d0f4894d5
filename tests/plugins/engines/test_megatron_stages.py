"""Stages chosen one by one in Megatron's launch files: the layout, and recompute by stage."""

from __future__ import annotations

import re
import subprocess

import pytest
from attrs import evolve

from autoparallel_core.cluster import build_cluster
from autoparallel_core.cost.stages import laid_out
from autoparallel_core.host import host
from autoparallel_core.models import load_model
from autoparallel_core.problem import make_problem
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.explain_cut import explain_cut
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
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


@pytest.mark.parametrize(("rank", "layers"), [(0, 5), (3, 5), (4, 2), (7, 2), (8, 0), (15, 0)])
def test_stages_that_share_a_node_recompute_by_rank(tmp_path, rank: int, layers: int) -> None:
    files = host().export(problem(16), evolve(STRATEGY, dp=2, shard=2), OPTIONS)
    assert files is not None
    fake = """torchrun() { while [ "$1" != --no-python ]; do shift; done; shift; "$@"; }\n"""
    script = files["launch.sh"].replace("exec python3 -u", "exec printf %s\\\\n")
    (tmp_path / "launch.sh").write_text(script.replace("set -euo pipefail", "set -euo pipefail\n" + fake))
    env = {"RANK": str(rank), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", str(tmp_path / "launch.sh")], capture_output=True, text=True, check=True, env=env)
    words = done.stdout.split("\n")
    assert words[0].endswith("pretrain_gpt.py")
    if layers:
        assert words[words.index("--recompute-num-layers") + 1] == str(layers)
        assert words[words.index("--recompute-method") + 1] == "block"
    else:
        assert not [w for w in words if w.startswith("--recompute")]


@pytest.mark.parametrize("n_gpus", [32, 16])
@pytest.mark.parametrize("file", ["launch.sh", "bridge.py"])
def test_what_is_exported_is_read_back(n_gpus: int, file: str) -> None:
    """Stages, recompute by stage, and so the same prediction."""
    p, s = problem(n_gpus), evolve(STRATEGY, dp=n_gpus // 8, shard=n_gpus // 8)
    files = host().export(p, s, OPTIONS)
    assert files is not None
    launch = host().read({file: files[file]}, "megatron", p)
    assert launch is not None
    assert launch.strategy == s
    assert launch.cut == StageCut((8, 10, 10, 8), ((5,), (2,), (0,), (0,)))
    assert not launch.notes
    want = evaluate(p, StrategyBatch.of([s]), host(), layout=laid_out(p.arch, 4, (8, 10, 10, 8), ((5,), (2,), (0,), (0,))))
    assert explain_cut(p, s, launch.cut, host()).cost.total_s == pytest.approx(float(want.total_s[0]))


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ("--decoder-first-pipeline-num-layers 6", (6, 10, 10, 10)),
        ("--decoder-first-pipeline-num-layers 8 --decoder-last-pipeline-num-layers 6", (8, 11, 11, 6)),
        ("--pipeline-model-parallel-layout Et*12|t*10|t*10|t*4L", (12, 10, 10, 4)),
        ("--pipeline-model-parallel-layout Et*9|t*9|t*9|t*9L", None),
        ("", None),
    ],
)
def test_stages_that_people_state_are_the_ones_priced(flags: str, layers: tuple[int, ...] | None) -> None:
    degrees = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4"
    text = f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {degrees} {flags}"
    quoted = re.sub(r"(Et\S+)", r"'\1'", text)
    launch = host().read({"run.sh": quoted + " --micro-batch-size 1"}, "megatron", problem(32))
    assert launch is not None
    assert (launch.cut.layers if launch.cut else None) == layers


@pytest.mark.parametrize("file", ["launch.sh", "bridge.py"])
def test_activations_in_host_memory_are_exported_and_read_back(file: str) -> None:
    p, s = problem(8), parse_strategy("tp2 pp1 dp4 zero1 mbs1")
    files = host().export(p, s, {"model": "Qwen/Qwen3-8B", "offloaded_layers": 12})
    assert files is not None
    launch = host().read({file: files[file]}, "megatron", p)
    assert launch is not None
    assert launch.strategy == s
    assert launch.software["activation_offload_layers"] == 12
    assert not launch.unknown
