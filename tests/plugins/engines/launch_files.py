"""Runs ``autoparallel check`` on launch files as people write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from serving_models import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, MIXTRAL, QWEN3_235B

from autoparallel_core.cli.main import main

MODELS: dict[str, dict[str, Any]] = {
    "llama-8b": LLAMA_8B, "llama-70b": LLAMA_70B, "mixtral": MIXTRAL, "deepseek-v3": DEEPSEEK_V3, "qwen3-235b-fp8": QWEN3_235B,
}  # fmt: skip


@frozen
class Verdict:
    """Exit code and the JSON document."""

    code: int
    document: dict[str, Any]
    err: str

    @property
    def strategy(self) -> str:
        return str(self.document["strategy"])

    @property
    def status(self) -> str:
        return str(self.document["status"])

    @property
    def rules(self) -> set[str]:
        return {v["rule"] for v in self.document["violations"]}

    @property
    def sentences(self) -> str:
        return "\n".join(v["sentence"] for v in self.document["violations"])

    @property
    def launch(self) -> dict[str, Any]:
        return dict(self.document["launch"])


Checker = Callable[..., Verdict]


def make_checker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checker:
    """``checker(files, *flags, model=…)``; the files lie in a directory of their own."""

    def check(files: Mapping[str, str], *flags: str, model: str | None = None) -> Verdict:
        directory = tmp_path / "launch"
        directory.mkdir(exist_ok=True)
        for old in directory.iterdir():
            old.unlink()
        for name, text in files.items():
            (directory / name).write_text(text)
        words = ["check", *(str(directory / name) for name in files), "--json", *flags]
        if model is not None:
            config = tmp_path / model / "config.json"
            config.parent.mkdir(exist_ok=True)
            config.write_text(json.dumps(MODELS[model]))
            words += ["--model-path", str(config.parent)]
        code = main(words)
        out, err = capsys.readouterr()
        return Verdict(code, json.loads(out) if out else {}, err)

    return check
