"""Every way in which a JSON file can fail to be one comes back as one sentence that begins with what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoparallel_core.calibrate.files import read_calibration
from autoparallel_core.errors import SpecError
from autoparallel_core.json_file import read_json_file
from autoparallel_core.profiles.files import read_profile
from autoparallel_core.reading.source import read_json
from autoparallel_core.spec.module_plan import read_module_plan

BROKEN = {
    "truncated": (b'{"a": ', "is not valid JSON"),
    "deep": (b"[" * 200_000, "is not valid JSON"),
    "bytes": (b"\xff\xfe", "cannot be read"),
}


@pytest.mark.parametrize("reader", [read_calibration, read_profile, read_json, read_module_plan])
@pytest.mark.parametrize("kind", [*BROKEN, "missing", "directory"])
def test_what_is_no_json_is_refused_by_every_reader(kind: str, reader, tmp_path: Path) -> None:
    path, says = tmp_path / "x.json", {"missing": "no such file", "directory": "is a directory; name a file"}.get(kind)
    if kind == "directory":
        path.mkdir()
    elif kind in BROKEN:
        content, says = BROKEN[kind]
        path.write_bytes(content)
    with pytest.raises(SpecError, match=f"x.json: {says}"):
        reader(path)


def test_what_is_json_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": [1, 2.5, null]}', encoding="utf-8")
    assert read_json_file(path, "x") == {"a": [1, 2.5, None]}
