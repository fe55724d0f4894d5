"""Shell scripts worked out without running them; every expectation is what bash does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoparallel_core.launch.arithmetic import calculate
from autoparallel_core.launch.shell import iterate, read_script


def commands(text: str, **kw: object) -> list[tuple[str, ...]]:
    return [c.words for c in read_script(text, **kw).commands]  # type: ignore[arg-type]


WORDS = [
    ("A=8; run --tp $A", ["--tp", "8"]),
    ("A=8\nrun --tp=${A}", ["--tp=8"]),
    ('A="x y"; run $A', ["x", "y"]),
    ('A="x y"; run "$A"', ["x y"]),
    ('run "a\\"b" \'c $A d\'', ['a"b', "c $A d"]),
    ("A=(--a 1 --b 2); run ${A[@]} end", ["--a", "1", "--b", "2", "end"]),
    ('A=(--a "x y"); run "${A[@]}"', ["--a", "x y"]),
    ("A=(1 2); A+=(3); run ${A[2]} ${#A[@]} ${A[0]}", ["3", "3", "1"]),
    ("run ${MISSING:-7} ${MISSING-8}", ["7", "8"]),
    ("A=; run x${A:-d}x${A-e}x", ["xdxx"]),
    ("A=5; run ${A:+yes} ${B:+no} end", ["yes", "end"]),
    ("run ${B:=9} $B", ["9", "9"]),
    ("N=4; G=8; run $((N * G)) $((N*G/2-1)) $(( (N + 1) % 3 ))", ["32", "15", "2"]),
    ("A=model.v1.yaml; run ${A%.*} ${A##*.} ${A%%.*} ${A#*.}", ["model.v1", "yaml", "model", "v1.yaml"]),
    ("A=a-b-c; run ${A//-/_} ${A/-/_} ${A:2:3}", ["a_b_c", "a_b-c", "b-c"]),
    ("run --a \\\n   1 \\\n --b 2 # a remark", ["--a", "1", "--b", "2"]),
    ("run {0..3}", ["0", "1", "2", "3"]),
    ("run $(seq 2 4) `echo x`", ["2", "3", "4", "x"]),
    ("run $(seq 1 2 5)", ["1", "3", "5"]),
    ("A='--a 1'; A=\"$A --b 2\"; run $A", ["--a", "1", "--b", "2"]),
    ("A=1; A+=2; run $A", ["12"]),
    ('N=3; O=" \\\n   ${N} \\\n  --x"; run $O', ["3", "--x"]),
    ("export A=2 B=3; run $A$B", ["23"]),
    ("X=Y; Y=z; run ${!X}", ["z"]),
    ("run a'b'\"c\"d", ["abcd"]),
    ("A=1 run $A end", ["end"]),
]


@pytest.mark.parametrize(("text", "expected"), WORDS)
def test_words_are_those_of_bash(text: str, expected: list[str], tmp_path: Path) -> None:
    found = [list(w[1:]) for w in commands(text) if w[0] == "run"]
    if shutil.which("bash"):
        script = tmp_path / "s.sh"
        script.write_text('run() { printf "%s\\0" "$@"; }\n' + text + "\n")
        done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True)
        assert done.stdout.split("\0")[:-1] == expected, "bash itself disagrees"
    # an unset variable keeps its name, so that a missing number can be told from an empty one
    assert [[w for w in words if w != "$A"] for words in found] == [expected]


CONTROL = [
    ("if [ $A = 1 ]; then run one; elif [ $A -gt 1 ]; then run many; else run none; fi", {"A": "3"}, ["many"]),
    ('if [[ "$A" == x* && -n "$A" ]]; then run yes; else run no; fi', {"A": "xyz"}, ["yes"]),
    ("if [ -z ${A} ]; then run unset; fi", {}, ["unset"]),
    ("if ! [ $A = 1 ]; then run other; fi", {"A": "2"}, ["other"]),
    ("case $A in small|tiny) run s;; big*) run b;; *) run d;; esac", {"A": "bigger"}, ["b"]),
    ("case $A in small) run s;; *) run d;; esac", {"A": "?"}, ["d"]),
    ("for i in 1 2 3; do run $i; done", {}, ["1", "2", "3"]),
    ("for ((i = 0; i < N; i++)); do run $i; done", {"N": "2"}, ["0", "1"]),
    ("f() { run ${1}-${2}; }; f a b; f c d", {}, ["a-b", "c-d"]),
    ("bash -c 'run $A'", {"A": "in"}, ["in"]),
    ('srun -N 2 sh -lc "cd /x; run $A"', {"A": "nested"}, ["nested"]),
    ("CMD='run deep'; eval $CMD", {}, ["deep"]),
    ("A=1; unset A; run x$A", {}, ["x$A"]),
    ("bash <<EOF\nrun $A\nEOF", {"A": "here"}, ["here"]),
]


@pytest.mark.parametrize(("text", "variables", "expected"), CONTROL)
def test_control_flow_is_followed(text: str, variables: dict[str, str], expected: list[str]) -> None:
    assert [" ".join(w[1:]) for w in commands(text, environment=variables) if w[0] == "run"] == expected


def test_a_condition_that_only_a_machine_knows_follows_its_first_branch_and_says_so() -> None:
    script = read_script("if nvidia-smi; then run a; else run b; fi")
    assert [c.words for c in script.commands] == [("run", "a")]
    assert script.undecided == ("nvidia-smi",)


def test_documents_that_a_script_writes_are_kept_with_their_variables_filled() -> None:
    script = read_script(
        'N=4\ncat > conf/a.yaml <<EOF\ntp: ${N}\nEOF\ncat <<\'EOF\' > b.json\n{"x": "$N"}\nEOF\ntee c.txt <<EOF\nhi\nEOF\n'
    )
    assert script.documents == {"a.yaml": "tp: 4\n", "b.json": '{"x": "$N"}\n', "c.txt": "hi\n"}


def test_other_files_are_sourced_and_run() -> None:
    others = {"env.sh": "TP=4", "go.sh": "run $TP $PP"}
    script = read_script("source ./env.sh\nPP=2 bash scripts/go.sh", others=others)
    assert ("run", "4", "2") in [c.words for c in script.commands]
    assert script.called == {"env.sh", "go.sh"}


def test_exported_and_prefixed_variables_reach_the_command() -> None:
    (command,) = read_script("export A=1\nB=2\nC=3 run").commands
    assert dict(command.environment) == {"A": "1", "C": "3"}


def test_flags_without_a_program_are_one_list() -> None:
    joined = list(iterate(read_script("--tp 8\n--pp 2\nrun x\n")))
    assert [c.words for c in joined] == [("run", "x"), ("--tp", "8", "--pp", "2")]


def test_endless_recursion_ends() -> None:
    assert commands("f() { f; run; }; f")
    assert commands("bash me.sh", others={"me.sh": "run; bash me.sh"})


@given(st.text(max_size=200))
@example("[0{")
def test_any_text_is_read_without_an_error(text: str) -> None:
    read_script(text)


@given(st.integers(0, 10**6), st.integers(1, 999), st.integers(0, 99))
def test_arithmetic(a: int, b: int, c: int) -> None:
    values = {"A": str(a), "B": str(b), "C": str(c)}
    assert calculate("$A * (B + ${C}) / B - C % B", values.get) == a * (b + c) // b - c % b
    assert calculate("A +", values.get) is None
    assert calculate("A / 0", values.get) is None
    assert calculate("D + 1", values.get) is None
    assert calculate("-7 / 2", values.get) == -3, "towards zero, as shells do"
