"""Files taken apart by kind."""

from __future__ import annotations

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.found import Found, find, has_flag, one_launch, program_at
from autoparallel_core.launch.sources import keyword_words, kind_of, take_apart


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.json", "{}", "json"),
        ("a.yml", "x: 1", "yaml"),
        ("a.toml", "", "toml"),
        ("a.py", "", "python"),
        ("run.slurm", "", "shell"),
        ("launch", "#!/bin/bash\n", "shell"),
        ("launch", "#!/usr/bin/env python3\n", "python"),
        ("config", '{"a": 1}', "json"),
        ("config", "[model]\nname = 1\n", "toml"),
        ("config", "# words\nmodel: x\n", "yaml"),
        ("args.txt", "--tp 8\n", "shell"),
        ("cmd", "torchrun x.py --tp 8", "shell"),
    ],
)
def test_kinds(name: str, text: str, kind: str) -> None:
    assert kind_of(name, text) == kind


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", '{"a": }', "a.json: is not valid JSON"),
        ("a.yaml", "a: [1", "a.yaml: is not valid YAML"),
        ("a.toml", "a = ", "a.toml: is not valid TOML"),
        ("a.py", "def", "a.py: is not valid Python"),
    ],
)
def test_a_broken_file_is_refused_by_name(name: str, text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        take_apart({f"dir/{name}": text})


def test_a_script_run_by_another_counts_once_and_has_its_machines() -> None:
    files = {"job.slurm": "#SBATCH -N 2\n#SBATCH --gres=gpu:8\nsrun bash $DIR/go.sh\n", "go.sh": "prog --x $SLURM_NNODES\n"}
    runs = [r for r in take_apart(files).runs if r.words[0] == "prog"]
    assert [(r.words, r.machines.total, r.file) for r in runs] == [(("prog", "--x", "2"), 16, "job.slurm")]


def test_documents_written_by_scripts_and_config_maps_are_found() -> None:
    manifest = "apiVersion: v1\nkind: ConfigMap\ndata:\n  go.sh: |\n    prog --y 1\n    end\n"
    files = {"a.sh": "cat > c.yaml <<EOF\ntp: 4\nEOF\n", "m.yaml": manifest}
    sources = take_apart(files)
    assert sources.data["c.yaml"] == {"tp": 4}
    assert ("prog", "--y", "1") in [r.words for r in sources.runs]


def test_pods_and_compose_files_run_commands() -> None:
    job = "apiVersion: batch/v1\nkind: Job\nspec:\n  completions: 2\n  template:\n    spec:\n      containers:\n"
    job += "      - command: [bash, -c, 'prog --z $A']\n        env: [{name: A, value: '5'}]\n"
    job += "        resources: {limits: {x.com/gpu: 4}}\n"
    compose = "services:\n  a:\n    command: prog --tp 4\n  b:\n    command: [prog, --tp, '2']\n"
    (inner,) = [r for r in take_apart({"j.yaml": job}).runs if r.words[0] == "prog"]
    assert (inner.words, inner.machines.total) == (("prog", "--z", "5"), 8)
    assert [r.words[-1] for r in take_apart({"c.yaml": compose}).runs] == ["4", "2"]


def test_python_calls_become_flags() -> None:
    code = "from lib import LLM\nx = LLM('org/M', tp_size=4, eager=True, off=False, what=name)\n"
    assert keyword_words(take_apart({"a.py": code}), ("LLM",), "lib") == ("--model", "org/M", "--tp_size", "4", "--eager")
    assert keyword_words(take_apart({"a.py": code}), ("LLM",), "other") is None


def found(words: str, file: str = "a", **kw: object) -> Found:
    return Found(tuple(words.split()), {}, Machines(**kw), (file,))  # type: ignore[arg-type]


def test_copies_of_one_launch_are_joined() -> None:
    commands = [found("--tp 8 --rank 0", nodes=2), found("--tp 8 --rank 1 --headless", gpus_per_node=8), found("--tp 8", "b")]
    one = one_launch(commands, per_node=("rank", "headless!"), program="x")
    assert one is not None
    assert (one.copies, one.machines) == (2, Machines(2, 8))


def test_different_launches_are_refused() -> None:
    with pytest.raises(SpecError, match="2 different x launches, which differ in: 4 8"):
        one_launch([found("--tp 8"), found("--tp 4")], per_node=(), program="x")


def test_talk_about_a_command_is_no_command() -> None:
    sources = take_apart({"a.sh": "echo prog --tp 8\nsrun -N 2 prog --tp 4 2>&1 | tee log\n"})
    hits = find(sources, lambda w: program_at(w, "prog"))
    assert [(h.words, h.machines.nodes) for h in hits] == [(("--tp", "4"), 2)]


def test_finding_programs_and_flags() -> None:
    assert program_at(["a", "/opt/bin/prog", "serve", "m"], "prog", then="serve") == 2
    assert program_at(["a", "prog", "bench"], "prog", then="serve") is None
    assert has_flag(["--a_b=1"], "--a-b")
