"""Runs the command in this process and catches what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from autoparallel_core.cli.main import main

DENSE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


@frozen
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))

    @property
    def words(self) -> str:
        return " ".join(self.out.split())


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("COLUMNS", "100")

    def run(*argv: str) -> Ran:
        try:
            code = main(argv)
        except SystemExit as e:  # --help and --version
            code = int(e.code or 0)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """A config file: the dense one above, with changes; None removes a field."""

    def write(**changes: Any) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({k: v for k, v in {**DENSE, **changes}.items() if v is not None}))
        return str(path)

    return write


@pytest.fixture
def refused(cli: Callable[..., Ran]) -> Callable[..., str]:
    """Runs a command that must be refused: exit code 2, one sentence, nothing on standard output."""

    def run(*argv: str, code: int = 2) -> str:
        ran = cli(*argv)
        assert ran.code == code
        lines = ran.err.splitlines()
        assert len(lines) == 1, ran.err
        assert lines[0].startswith("autoparallel: ")
        assert "Traceback" not in ran.err
        assert not ran.out
        return lines[0].removeprefix("autoparallel: ")

    return run
