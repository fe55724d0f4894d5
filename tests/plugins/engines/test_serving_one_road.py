"""What a search predicts of a deployment, ``check`` predicts of its launch files: whatever was asked, in whatever company."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from serving_models import DEEPSEEK_V3, LLAMA_70B, MIXTRAL

from autoparallel_core.cli.main import main
from autoparallel_core.cluster import build_cluster
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.problem import make_problem
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.rules import rules_for
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload

ENGINES = ("vllm", "sglang", "trtllm")
MODELS = {"dense": LLAMA_70B, "sparse": MIXTRAL, "latent": DEEPSEEK_V3}

ASKED = st.fixed_dictionaries(
    {
        "--n-gpus": st.sampled_from([8, 16, 32]),
        "--gpu-type": st.sampled_from(["H100", "H200"]),
        "--isl": st.sampled_from([1, 100, 2000]),
        "--osl": st.sampled_from([1, 20, 500]),
        "--top": st.just(4),
    },
    optional={
        "--infer-batch-size": st.sampled_from([1, 7, 300, 6000]),
        "--goal": st.sampled_from(["latency", "cost"]),
        "--tpot-ms": st.sampled_from([60, 200]),
        "--request-rate": st.just(0.5),
        "--kv-dtype": st.just("fp8"),
        "--max-num-seqs": st.sampled_from([13, 2000]),
        "--memory-fraction": st.just(0.85),
        "--prefix-hit-rate": st.just(0.5),
        "--max-tokens-per-mb": st.sampled_from([2048, 16384]),
        "--max-length": st.just(4096),
        "--gpu-hour-price": st.just(2.5),
    },
)


def ran(*argv: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        return main(argv), out.getvalue()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(asked=ASKED, rank=st.integers(1, 4))
def test_check_of_an_exported_deployment_predicts_what_the_search_did(
    tmp_path_factory: pytest.TempPathFactory, engine: str, model: str, asked: dict[str, Any], rank: int
) -> None:
    directory: Path = tmp_path_factory.mktemp("launch")
    (directory / "config.json").write_text(json.dumps(MODELS[model]))
    flags = [x for name, value in asked.items() for x in (name, str(value))]
    words = ["--mode", "inference", "--engine", engine, "--model-path", str(directory), *flags]
    out = directory / "out"
    code, text = ran(*words, "--json", "--export", str(out), "--export-plan", str(rank))
    assume(code == 0)
    searched = json.loads(text)["strategies"][rank - 1]
    _, text = ran("check", str(out), "--json")
    checked = json.loads(text)["plan"]
    assert checked["strategy"].replace(" mbs1", "") == searched["strategy"]
    assert checked["verdict"] == searched["verdict"]
    assert checked["memory"]["reserved_bytes"] == pytest.approx(searched["memory"]["reserved_bytes"], rel=1e-9)
    for name, value in searched["serving"].items():
        if isinstance(value, (int, float)):
            assert checked["serving"][name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
        else:
            assert checked["serving"][name] == value, name


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_deployment_is_priced_alone_as_in_company(engine: str, model: str) -> None:
    arch, cluster = build_arch(MODELS[model], name=model, host=host()), build_cluster(host().gpu("H100"), 32)
    problem = make_problem(arch, cluster, InferenceWorkload(1000, 200), engine=engine, host=host())
    batch = StrategyBatch.concat(
        list(enumerate_space(problem, host().search_space(problem) or Space(), rules_for(problem, host())))
    )
    together = evaluate(problem, batch, host())
    for i in np.random.default_rng(3).choice(len(batch), min(25, len(batch)), replace=False):
        alone = evaluate(problem, StrategyBatch.of([batch[int(i)]]), host())
        for name, values in together.serving.items():
            assert alone.serving[name][0] == pytest.approx(values[i], rel=1e-9), (str(batch[int(i)]), name)
