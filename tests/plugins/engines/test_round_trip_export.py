"""A plan that is exported and read back is the same plan with the same prediction, for every engine."""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving_models import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, MIXTRAL

from autoparallel_core.cli.asked import merged, read_launch, stated_question, with_launch
from autoparallel_core.cli.check import add_parser
from autoparallel_core.cli.options import Question
from autoparallel_core.cli.parser import Parser
from autoparallel_core.host import host
from autoparallel_core.launch.sources import take_apart
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.rules import rules_for, violations
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

TRAINING = ("megatron", "torchtitan", "fsdp", "deepspeed")
SERVING = ("vllm", "sglang", "trtllm")
VERSIONS = {
    "megatron": ("0.19.2", "0.14.0", "0.12.1"), "torchtitan": ("0.3.0", "0.2.1"), "fsdp": ("1.15.0",),
    "deepspeed": ("0.19.8", "0.15.0"),
    "vllm": ("0.33.0", "0.11.0", "0.8.2"), "sglang": ("0.5.23", "0.5.5"), "trtllm": ("1.2.1", "1.1.0"),
}  # fmt: skip
MODELS = {"dense": (LLAMA_70B, 32), "small": (LLAMA_8B, 16), "sparse": (MIXTRAL, 32), "latent": (DEEPSEEK_V3, 256)}
SAMPLE = 400


def command(*words: str) -> argparse.Namespace:
    """The flags of ``autoparallel check``."""
    parsers = Parser(prog="autoparallel").add_subparsers()
    add_parser(parsers)
    parsed: argparse.Namespace = parsers.choices["check"].parse_args(list(words))
    return parsed


@cache
def question(engine: str, version: str, model: str) -> tuple[Problem, StrategyBatch, str]:
    """A problem, a sample of its legal strategies, and the flags that state it."""
    config, n_gpus = MODELS[model]
    words = ["--engine", engine, "--engine-version", version, "--gpu-type", "H100", "--n-gpus", str(n_gpus)]
    words += ["--mode", "training" if engine in TRAINING else "inference"]
    words += ["--max-length", "4096", "--batch-size", "512"] if engine in TRAINING else ["--isl", "1000", "--osl", "200"]
    path = model_file(model, config)
    args = command("--model-path", path, *words, "--strategy", "tp1")
    problem = Question(args, host()).problem()
    space = host().search_space(problem) or Space()
    batch = StrategyBatch.concat(list(enumerate_space(problem, space, rules_for(problem, host()))))
    rows = np.random.default_rng(7).choice(len(batch), min(SAMPLE, len(batch)), replace=False)
    from autoparallel_core.cli.asked import restated

    return problem, batch.take(np.sort(rows)), restated(args, problem)


_written: dict[str, str] = {}


def model_file(name: str, config: dict[str, Any]) -> str:
    """The config as a file that lives as long as the tests."""
    import json
    import tempfile
    from pathlib import Path

    if name not in _written:
        directory = Path(tempfile.mkdtemp()) / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        _written[name] = str(directory)
    return _written[name]


def read_back(files: dict[str, str], engine: str) -> tuple[Problem, Strategy]:
    first = read_launch(files, host(), None)
    assert first.engine == engine
    assert first.unknown == ()
    assert first.unset == ()
    args = merged(command("x"), first, stated_question(files), host())
    problem = with_launch(Question(args, host()).problem(), first)
    second = read_launch(files, host(), engine, problem)
    assert second.refusals == ()
    assert second.strategy is not None
    return problem, second.strategy


def figures(problem: Problem, strategy: Strategy) -> tuple[float, float, float]:
    plan = explain_strategy(problem, strategy, host())
    return plan.throughput, plan.memory.reserved_bytes, plan.cost.total_s


CASES = [(e, v, m) for e in (*TRAINING, *SERVING) for v in VERSIONS[e] for m in MODELS if not (m == "latent" and e == "fsdp")]


@pytest.mark.parametrize(("engine", "version", "model"), CASES)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(pick=st.floats(0, 1, exclude_max=True))
def test_an_exported_plan_reads_back_as_itself(engine: str, version: str, model: str, pick: float) -> None:
    problem, batch, flags = question(engine, version, model)
    strategy = batch[int(pick * len(batch))]
    config = MODELS[model][0]
    options = {"model": model_file(model, config), "config": config, "question": flags, "figures": ("Predicted: fast.",)}
    files = host().export(problem, strategy, options)
    assert files is not None
    again, found = read_back(dict(files), engine)
    assert found == strategy, f"{strategy} was read back as {found}"
    assert violations(again, found, rules_for(again, host())) == []
    assert figures(again, found) == pytest.approx(figures(problem, strategy), rel=1e-9)


@pytest.mark.parametrize("engine", [*TRAINING, *SERVING])
def test_every_file_can_be_taken_apart_and_names_the_plan(engine: str) -> None:
    problem, batch, flags = question(engine, VERSIONS[engine][0], "dense")
    files = host().export(problem, batch[0], {"model": "M", "config": LLAMA_70B, "question": flags})
    assert files is not None
    sources = take_apart(files)
    for name, text in files.items():
        assert text.endswith("\n"), name
        assert len(max(text.splitlines(), key=len)) < 400, name
        if not name.endswith(".json"):
            assert str(batch[0]) in " ".join(text.replace("# ", " ").split()), name
            assert flags in text, name
    assert {"slurm.sh", "kubernetes.yaml"} <= set(files)
    assert sources.runs
    assert files["slurm.sh"].splitlines()[0] == "#!/usr/bin/env bash"


@pytest.mark.parametrize("engine", [*TRAINING, *SERVING])
@pytest.mark.parametrize("name", ["slurm.sh", "kubernetes.yaml"])
def test_each_frame_alone_with_the_files_it_runs_is_enough(engine: str, name: str) -> None:
    problem, batch, flags = question(engine, VERSIONS[engine][0], "dense")
    strategy = batch[len(batch) // 2]
    files = dict(
        host().export(problem, strategy, {"model": model_file("dense", LLAMA_70B), "config": LLAMA_70B, "question": flags}) or {}
    )
    other = ({"slurm.sh", "kubernetes.yaml", "bridge.py"} - {name}) & set(files)
    kept = {k: v for k, v in files.items() if k not in other}
    _, found = read_back(kept, engine)
    assert found == strategy


def test_options_of_software_survive() -> None:
    problem, batch, flags = question("megatron", "0.19.2", "sparse")
    changed = evolve(problem, software=evolve(problem.software, dispatcher="deepep", recompute_modules=("mlp", "layernorm")))
    strategy = next(s for s in batch if s.recompute == 1 and s.ep > 1)
    files = dict(host().export(changed, strategy, {"config": MIXTRAL, "question": flags}) or {})
    again, found = read_back(files, "megatron")
    assert found == strategy
    assert again.software.dispatcher == "deepep"
    assert again.software.recompute_modules == ("mlp", "layernorm")
