"""Predictions of a fixed set of configurations, so that a change of any constant or formula shows as a diff."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from autoparallel_core.cluster import build_cluster
from autoparallel_core.host import Host
from autoparallel_core.models import load_model
from autoparallel_core.problem import make_problem
from autoparallel_core.search.api import search
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.result import Plan
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import parse_strategy
from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload

HERE = Path(__file__).parent
PREDICTIONS = HERE / "predictions.json"
TRAINING = ("seq_len", "global_batch_size", "precision")
INFERENCE = ("isl", "osl", "concurrency")


def problem_of(case: dict[str, Any], mode: str, defaults: dict[str, Any], host: Host) -> Problem:
    """The case's question."""
    values = {**defaults[mode], **case}
    work = (
        TrainingWorkload(**{k: values[k] for k in TRAINING})
        if mode == "training"
        else InferenceWorkload(**{k: values[k] for k in INFERENCE})
    )
    gpu = host.gpu(case["gpu"])
    n = case["n_gpus"]
    cluster = build_cluster(gpu, n, gpus_per_node=min(n, gpu.gpus_per_node))
    return make_problem(load_model(case["model"], host), cluster, work, engine=case["engine"], host=host)


def figures(plan: Plan) -> dict[str, Any]:
    """What is compared, in SI units."""
    out: dict[str, Any] = {"verdict": plan.verdict, "reserved_bytes": plan.memory.reserved_bytes}
    if plan.training:
        out |= {"step_s": plan.training.step_s, "allocated_bytes": plan.memory.allocated_bytes, "mfu": plan.training.mfu}
    if plan.serving:
        s = plan.serving
        out |= {"ttft_s": s.ttft_s, "tpot_s": s.tpot_s, "output_tokens_per_s": s.output_tokens_per_s}
        out |= {"kv_tokens": s.kv_tokens_per_instance, "weights_bytes": s.weights_bytes_per_gpu}
    return out


def predict() -> dict[str, Any]:
    """Every case by a readable name."""
    host = Host()
    cases = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))
    out: dict[str, Any] = {}
    for mode in ("training", "inference"):
        for case in cases[mode]:
            name = " ".join(str(case[k]) for k in ("model", "gpu", "n_gpus", "engine", "strategy"))
            problem = problem_of(case, mode, cases["defaults"], host)
            out[name] = figures(explain_strategy(problem, parse_strategy(case["strategy"]), host))
    for case in cases["rank"]:
        name = " ".join(str(case[k]) for k in ("model", "gpu", "n_gpus", "engine")) + " best of all"
        result = search(problem_of(case, case["mode"], cases["defaults"], host), top=3, host=host)
        out[name] = {"best": [str(p.strategy) for p in result.plans]}
    return out


def write() -> None:
    """Accept today's predictions."""
    PREDICTIONS.write_text(json.dumps(predict(), indent=1) + "\n", encoding="utf-8")
