"""``autoparallel export`` and ``--export``: what is written, what is refused."""

from __future__ import annotations

import pytest

WHERE = ("--gpu-type", "H100", "--n-gpus", "16", "--batch-size", "64")


@pytest.fixture
def question(model):
    return ("--model-path", model(), *WHERE)


def test_the_best_plan_is_written_and_checks(cli, question, tmp_path):
    out = tmp_path / "launch"
    ran = cli("export", *question, "--out", str(out))
    assert ran.code == 0
    listed = [line.strip() for line in ran.out.splitlines()[1:]]
    assert sorted(listed) == sorted(str(p) for p in out.iterdir())
    best = cli(*question, "--json").json["strategies"][0]
    judged = cli("check", str(out), "--json")
    assert (judged.code, judged.json["strategy"]) == (0, best["strategy"])
    assert judged.json["plan"]["total_s"] == pytest.approx(best["total_s"], rel=1e-12)
    assert judged.json["plan"]["memory"]["reserved_bytes"] == pytest.approx(best["memory"]["reserved_bytes"], rel=1e-12)


def test_a_given_strategy_and_the_kth(cli, question, tmp_path):
    cli("export", *question, "--strategy", "tp2 pp2 dp4 zero1 mbs1", "--out", str(tmp_path / "a"))
    assert "--tensor-model-parallel-size 2" in (tmp_path / "a" / "launch.sh").read_text()
    third = cli(*question, "--top", "3", "--json").json["strategies"][2]["strategy"]
    document = cli("export", *question, "--plan", "3", "--out", str(tmp_path / "b"), "--json").json
    assert document["plan"]["strategy"] == third
    assert cli("check", str(tmp_path / "b"), "--json").json["strategy"] == third


def test_with_a_search(cli, question, tmp_path):
    ran = cli(*question, "--top", "2", "--export", str(tmp_path / "x"), "--export-plan", "2")
    assert ran.code == 0
    assert "Launch files of" in ran.out
    second = cli(*question, "--top", "2", "--json").json["strategies"][1]["strategy"]
    assert cli("check", str(tmp_path / "x"), "--json").json["strategy"] == second
    loud = cli(*question, "--top", "1", "--json", "--export", str(tmp_path / "y"))
    assert loud.json["command"] == "advise"
    assert str(tmp_path / "y" / "launch.sh") in loud.err


def test_refusals(refused, cli, question, tmp_path):
    assert "--out" in refused("export", *question)
    cli("export", *question, "--out", str(tmp_path))
    assert "--force overwrites" in refused("export", *question, "--out", str(tmp_path))
    assert cli("export", *question, "--out", str(tmp_path), "--force").code == 0
    heads = refused(
        "export", *question, "--strategy", "tp16 pp1 dp1", "--engine", "torchtitan", "--out", str(tmp_path / "n"), code=3
    )
    assert "8 key/value heads cannot be divided by tp 16" in heads
    assert not (tmp_path / "n").exists()
    assert "give one of them" in refused("export", *question, "--strategy", "tp1", "--plan", "2", "--out", str(tmp_path))
    few = ("--model", "Llama-3.2-1B", "--gpu-type", "H100", "--n-gpus", "1", "--batch-size", "2", "--no-recompute")
    assert "only" in refused("export", *few, "--plan", "999", "--out", str(tmp_path / "n"))
    assert "holds 1 strategies" in cli(*question, "--top", "1", "--export", str(tmp_path / "z"), "--export-plan", "3").err
    assert "give --export DIR, too" in refused(*question, "--export-plan", "3")


def test_a_plan_that_does_not_fit_is_written_with_a_warning(cli, model, tmp_path):
    small = ("--model-path", model(), "--gpu-type", "H100", "--gpu-memory-gb", "3", "--n-gpus", "8", "--batch-size", "64")
    ran = cli("export", *small, "--strategy", "tp1 pp1 dp8 mbs1", "--out", str(tmp_path / "a"))
    assert ran.code == 0
    assert "does not fit" in ran.err
    nothing = cli("export", *small, "--out", str(tmp_path / "b"))
    assert nothing.code == 3
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("megatron", {"launch.sh", "slurm.sh", "kubernetes.yaml", "bridge.py"}),
        ("torchtitan", {"launch.sh", "slurm.sh", "kubernetes.yaml", "plan.py"}),
        ("fsdp", {"launch.sh", "slurm.sh", "kubernetes.yaml", "accelerate.yaml", "train.py"}),
        ("deepspeed", {"launch.sh", "slurm.sh", "kubernetes.yaml", "ds_config.json", "train.py"}),
    ],
)
def test_files_of_each_engine(cli, question, tmp_path, engine, names):
    cli("export", *question, "--engine", engine, "--out", str(tmp_path))
    assert {p.name for p in tmp_path.iterdir()} - {"config.json"} == names
    compile((tmp_path / next(n for n in names if n.endswith(".py"))).read_text(), "x.py", "exec")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_files_of_serving_engines(cli, model, tmp_path, engine):
    words = ("--mode", "inference", "--model-path", model(), "--gpu-type", "H100", "--n-gpus", "8", "--engine", engine)
    cli("export", *words, "--out", str(tmp_path / "o"))
    names = {p.name for p in (tmp_path / "o").iterdir()}
    assert names == {"serve.sh", "slurm.sh", "kubernetes.yaml"} | ({"config.yaml"} if engine == "trtllm" else set())


def test_a_model_by_hand_and_one_of_the_catalogue(cli, tmp_path):
    hand = (
        "--hidden-size",
        "2048",
        "--num-layers",
        "16",
        "--num-heads",
        "16",
        "--intermediate-size",
        "8192",
        "--vocab-size",
        "32000",
    )
    cli("export", *hand, *WHERE, "--out", str(tmp_path / "a"))
    text = (tmp_path / "a" / "launch.sh").read_text()
    assert "--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16" in text
    judged = cli("check", str(tmp_path / "a"), "--json")
    assert judged.code == 0
    cli("export", "--model", "Llama-3.1-8B", *WHERE, "--out", str(tmp_path / "b"))
    assert "meta-llama/Llama-3.1-8B" in (tmp_path / "b" / "bridge.py").read_text()
    assert cli("check", str(tmp_path / "b"), "--json").json["model"]["name"] == "meta-llama/Llama-3.1-8B"
