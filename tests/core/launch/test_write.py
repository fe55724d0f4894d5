"""Files on disk whole or not at all; texts that read back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.errors import SpecError
from autoparallel_core.launch.shell import read_script
from autoparallel_core.launch.write import array, comment, group, slug, write_files, yaml_scalar


def test_files_are_written_scripts_executable(tmp_path: Path) -> None:
    paths = write_files(tmp_path / "new" / "dir", {"a.sh": "#!/bin/sh\n", "b.yaml": "x: 1\n"})
    assert [p.name for p in paths] == ["a.sh", "b.yaml"]
    assert paths[0].stat().st_mode & stat.S_IXUSR
    assert not paths[1].stat().st_mode & stat.S_IXUSR
    assert sorted(p.name for p in paths[0].parent.iterdir()) == ["a.sh", "b.yaml"], "no temporary file is left"


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    with pytest.raises(SpecError, match=r"b exists; --force overwrites"):
        write_files(tmp_path, {"a": "1", "b": "2"})
    assert (tmp_path / "b").read_text() == "mine"
    assert not (tmp_path / "a").exists(), "none is written when one is in the way"
    write_files(tmp_path, {"a": "1", "b": "2"}, force=True)
    assert (tmp_path / "b").read_text() == "2"


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written"):
        write_files(tmp_path / "file", {"a": "1"})


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SpecError, match="No space left"):
        write_files(tmp_path, {"a": "new"}, force=True)
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


WORD = st.text(
    alphabet=st.characters(codec="ascii", min_codepoint=33, max_codepoint=126, exclude_characters="$`!"), min_size=1, max_size=12
)


@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=12))
def test_arrays_read_back_as_their_words(pairs: list[tuple[str, str]]) -> None:
    words = [w for i, (a, b) in enumerate(pairs) for w in (f"--flag{i}-{a.strip('-')}", b)]
    text = array("ARGS", [group("Why: it's so.", *words)])
    assert all(len(line) <= 120 for line in text.splitlines())
    (command,) = read_script(text + '\nrun "${ARGS[@]}"').commands
    assert list(command.words[1:]) == words


def test_groups_leave_out_what_is_not_set() -> None:
    g = group("c", ("--a", None), None, "", ("--b", 0), ("--c", [1, 2]), "--d")
    assert g.words == ("--b", "0", "--c", "1", "2", "--d")
    assert array("A", [group("empty"), g]).count("#") == 1


@given(st.one_of(st.text(max_size=20), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)))
def test_scalars_read_back_from_yaml(value: object) -> None:
    if isinstance(value, str) and any(ord(c) < 32 or 0x7F <= ord(c) <= 0x9F or 0xD800 <= ord(c) <= 0xDFFF for c in value):
        return
    read = yaml.safe_load(f"k: {yaml_scalar(value)}")["k"]
    if isinstance(value, float):  # YAML 1.1 takes 1e-05 for a word
        read = float(read)
    assert read == value
    assert type(read) is type(value)


def test_names_for_batch_systems() -> None:
    assert slug("Org/Model-3.1_70B") == "org-model-3-1-70b"
    assert slug("***") == "job"
    assert len(slug("x" * 99)) == 40


def test_comments_are_wrapped() -> None:
    lines = comment("word " * 60)
    assert len(lines) > 1
    assert all(line.startswith("# ") and len(line) <= 116 for line in lines)
