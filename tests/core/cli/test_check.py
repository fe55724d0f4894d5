"""``autoparallel check``: exit codes, all reasons at once, what wins over what, and the same rules as the search."""

from __future__ import annotations

import json

import pytest

SCRIPT = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size {tp} --sequence-parallel \\
  --pipeline-model-parallel-size {pp} --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 \\
  --max-position-embeddings 8192 --bf16 --use-distributed-optimizer --overlap-grad-reduce
"""
WHERE = ("--gpu-type", "H100")


@pytest.fixture
def launch(tmp_path):
    def write(text, name="train.sh"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_a_good_launch(cli, launch, model):
    ran = cli("check", launch(SCRIPT.format(tp=2, pp=2)), *WHERE, "--model-path", model())
    assert ran.code == 0
    assert ran.err == ""
    assert "Strategy tp2 pp2 dp4 zero1 mbs1 · Megatron-LM arguments in" in ran.words
    assert "Legal: breaks none of" in ran.words
    assert "stage 0 (8 layers)" in ran.words
    assert "Best found:" in ran.words
    assert "of its speed" in ran.words


def test_an_illegal_launch_lists_everything_and_what_to_run_instead(cli, launch, model):
    ran = cli("check", launch(SCRIPT.format(tp=3, pp=5)), *WHERE, "--model-path", model())
    assert ran.code == 3
    assert ran.err.startswith("autoparallel: 'tp3 pp5 dp1")
    for words in ("16 query heads cannot be divided by tp 3", "3 × pp 5", "cannot be divided by pp 5", "rule 'heads % tp'"):
        assert words in ran.words
    assert "Nearest legal strategies" in ran.words
    document = cli("check", launch(SCRIPT.format(tp=3, pp=5)), *WHERE, "--model-path", model(), "--json").json
    assert document["status"] == "illegal"
    assert document["plan"] is None
    assert document["share_of_best"] is None
    assert len(document["violations"]) >= 3
    assert document["instead"]
    assert all(v["source"] for v in document["violations"])


def test_a_launch_that_does_not_fit_says_where_and_what_would(cli, launch, model):
    words = ("check", launch(SCRIPT.format(tp=1, pp=2)), "--gpu-type", "H100", "--gpu-memory-gb", "8", "--model-path", model())
    ran = cli(*words)
    assert ran.code == 3
    assert "does not fit: stage 0 (8 layers) needs" in ran.err
    assert "Does not fit: each GPU has 8.0 GB" in ran.words
    document = cli(*words, "--json").json
    assert document["status"] == "does not fit"
    assert document["shortfalls"][0].endswith("too much")
    assert all(c["verdict"] != "does not fit" for c in document["instead"])


def test_the_command_wins_over_the_files(cli, launch, model):
    path = launch(SCRIPT.format(tp=2, pp=2))
    document = cli("check", path, *WHERE, "--model-path", model(), "--n-gpus", "32", "--batch-size", "128", "--json").json
    assert document["cluster"]["n_gpus"] == 32
    assert document["workload"]["global_batch_size"] == 128
    assert document["strategy"].startswith("tp2 pp2 dp8")


def test_a_comment_states_what_files_cannot(cli, launch, model):
    path = model()
    head = f"# autoparallel question: --model-path {path} --gpu-type A100 --n-gpus 4 --isl 3000 --osl 500 --infer-batch-size 12\n"
    text = head + "vllm serve somewhere/else --tensor-parallel-size 2 --max-model-len 4096\n"
    document = cli("check", launch(text, "serve.sh"), "--json").json
    assert document["cluster"]["gpu"].startswith("A100")
    assert (document["workload"]["isl"], document["workload"]["concurrency"]) == (3000, 12)
    assert document["cluster"]["n_gpus"] == 4, "the plan was made for more GPUs than this instance uses"
    assert document["strategy"] == "tp2 pp1 dp1 mbs1"
    other = cli("check", launch(text, "serve.sh"), "--gpu-type", "H100", "--isl", "100", "--json").json
    assert (other["cluster"]["gpu"][:4], other["workload"]["isl"]) == ("H100", 100)


def test_a_strategy_without_files(cli, model):
    small = ("--model-path", model(), *WHERE)
    good = cli("check", *small, "--strategy", "tp4 pp1 dp2 zero1 mbs1", "--json")
    assert (good.code, good.json["launch"], good.json["files"]) == (0, None, [])
    assert good.json["cluster"]["n_gpus"] == 8, "as many GPUs as it takes"
    bad = cli("check", *small, "--engine", "torchtitan", "--strategy", "tp16 pp1 dp1 zero3 mbs1")
    assert bad.code == 3
    assert "8 key/value heads cannot be divided by tp 16" in bad.words


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "give either launch files or --strategy"),
        (("x.sh", "--strategy", "tp1"), "not both"),
        (("/nowhere/x.sh",), "/nowhere/x.sh: no such file"),
    ],
)
def test_bad_input(refused, argv, says):
    assert says in refused("check", *argv)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo hello\n", "no launch of an installed engine was found in"),
        ("vllm serve org/nothing-known -tp 2\n", "the files name the model 'org/nothing-known'"),
        ("vllm serve $MODEL -tp two\n", "'two' is not a whole number"),
        ("# autoparallel question: --gpu-typ H100\nvllm serve m\n", "unknown flag --gpu-typ; did you mean --gpu-type"),
    ],
)
def test_files_that_cannot_be_judged(refused, launch, text, says):
    assert says in refused("check", launch(text))


def test_a_configuration_that_is_named_and_not_given_is_asked_for(refused, launch):
    path = launch("accelerate launch --config_file conf/acc.yaml train.py\n")
    assert "named there and not given: conf/acc.yaml (give it, too)" in refused("check", path)


def test_the_model_may_be_missing(refused, launch):
    assert "give --model-path or --model" in refused("check", launch(SCRIPT.format(tp=2, pp=2)))


def test_binary_and_empty(refused, tmp_path):
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    assert "is not a text file" in refused("check", str(tmp_path / "b"))
    (tmp_path / "empty").mkdir()
    assert "holds no files" in refused("check", str(tmp_path / "empty"))


def test_another_engine_is_refused_by_name(refused, launch, model):
    path = launch("vllm serve m -tp 2\n")
    assert "no launch of sglang was found" in refused("check", path, "--engine", "sglang", "--model-path", model())
    assert "unknown engine 'vlm'" in refused("check", path, "--engine", "vlm")


def test_two_engines_in_one_place(refused, launch, model, tmp_path):
    launch("vllm serve m -tp 2\n", "a.sh")
    launch("python -m sglang.launch_server --model-path m --tp 2\n", "b.sh")
    said = refused("check", str(tmp_path / "a.sh"), str(tmp_path / "b.sh"), "--model-path", model())
    assert "read as launches of sglang and vllm; say which with --engine" in said


def test_exit_code_and_json_serve_as_a_gate(cli, launch, model):
    """The document is whole in every case, and the code alone tells."""
    for tp, code in ((2, 0), (3, 3)):
        ran = cli("check", launch(SCRIPT.format(tp=tp, pp=2)), *WHERE, "--model-path", model(), "--json")
        assert ran.code == code
        assert json.loads(ran.out)["command"] == "check"


def test_search_and_check_share_their_rules(cli, model):
    """What the search returns passes the check; what the check accepts is in the search's space."""
    question = ("--model-path", model(), *WHERE, "--n-gpus", "16", "--batch-size", "64", "--engine", "megatron")
    found = cli(*question, "--top", "5", "--json").json["strategies"]
    assert len(found) == 5
    for plan in found:
        judged = cli("check", *question, "--strategy", plan["strategy"], "--json")
        assert judged.code == 0
        assert judged.json["plan"]["total_s"] == plan["total_s"]
        assert judged.json["violations"] == []
    best = cli("check", *question, "--strategy", found[0]["strategy"], "--json").json
    assert best["share_of_best"] == pytest.approx(1.0, abs=2e-3)
    worse = cli("check", *question, "--strategy", "tp8 pp2 dp1 zero1 mbs1", "--json").json
    assert worse["share_of_best"] < best["share_of_best"]
