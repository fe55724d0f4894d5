"""Asks the command one question in this process and gives its answer as a document."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from autoparallel_core.cli.main import main


@frozen
class Answer:
    """Exit code, the JSON document (empty when there is none) and standard error."""

    code: int
    document: dict[str, Any]
    err: str

    @property
    def legal(self) -> bool:
        return not self.document["violations"]

    @property
    def rules(self) -> set[str]:
        return {v["rule"] for v in self.document["violations"]}

    @property
    def sentences(self) -> str:
        return "\n".join(v["sentence"] for v in self.document["violations"])

    @property
    def instead(self) -> list[str]:
        """What the answer offers in place of the strategy, without the micro-batch."""
        return [i["strategy"].removesuffix(" mbs1") for i in self.document["instead"]]

    @property
    def plan(self) -> dict[str, Any]:
        """The plan of ``check`` and ``explain``, the best one of a search."""
        return dict(self.document["plan"] if "plan" in self.document else self.document["strategies"][0])

    def stage(self, k: int = 0) -> dict[str, float]:
        """Bytes by cause on one pipeline stage."""
        return dict(self.plan["memory"]["stages"][k]["bytes"])


def ask(*words: str, model: str | Mapping[str, Any], files: Mapping[str, str] | None = None) -> Answer:
    """``autoparallel WORDS --json`` about a model of the catalogue or a config; ``files`` follow a leading ``check``."""
    with tempfile.TemporaryDirectory() as directory:
        argv = list(words)
        for name, text in (files or {}).items():
            path = Path(directory) / name
            path.write_text(text)
            argv.insert(1, str(path))
        if isinstance(model, str):
            argv += ["--model", model]
        else:
            (Path(directory) / "config.json").write_text(json.dumps(model))
            argv += ["--model-path", directory]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*argv, "--json"])
    text = out.getvalue()
    return Answer(code, json.loads(text) if text else {}, err.getvalue())


def check(engine: str, gpu: str, n_gpus: int, strategy: str, *words: str, model: str | Mapping[str, Any]) -> Answer:
    """``autoparallel check --strategy``; serving engines serve."""
    mode = ("--mode", "inference") if engine in {"vllm", "sglang", "trtllm"} else ()
    return ask(
        "check",
        "--engine",
        engine,
        "--gpu-type",
        gpu,
        "--n-gpus",
        str(n_gpus),
        "--strategy",
        strategy,
        *mode,
        *words,
        model=model,
    )
