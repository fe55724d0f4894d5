"""No answer depends on the order in which plugins are found: the installed ones, shuffled, search alike."""

from __future__ import annotations

import random
from importlib.metadata import entry_points
from typing import Any

import pytest
from attrs import asdict

from autoparallel_core.cluster import build_cluster
from autoparallel_core.hookspecs import GROUPS
from autoparallel_core.host import Host
from autoparallel_core.models import build_arch
from autoparallel_core.problem import make_problem
from autoparallel_core.search.api import search
from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload

CONFIG = {
    "model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 2048, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "tie_word_embeddings": False,
}  # fmt: skip


def answer(order: list[Any], mode: str) -> tuple[Any, ...]:
    host = Host(entry_points=order)
    arch = build_arch(CONFIG, name="small", host=host)
    cluster = build_cluster(host.gpu("H100"), 16)
    if mode == "training":
        problem = make_problem(arch, cluster, TrainingWorkload(4096, 64), engine="megatron", host=host)
    else:
        problem = make_problem(arch, cluster, InferenceWorkload(1024, 256, 64), engine="vllm", host=host)
    result = search(problem, host=host, top=5)
    assert result.plans
    plans = [(str(p.strategy), dict(p.cost.seconds), [dict(s.bytes) for s in p.memory.stages]) for p in result.plans]
    refused, blame = dict(result.refused), dict(result.blame)
    found = [asdict(p) for p in host.plugins()]
    return arch, plans, refused, blame, found, list(host.gpus()), list(host.engines()), list(host.catalogue()), host.warnings


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_search_is_the_same_in_any_order_of_registration(mode: str) -> None:
    installed = [ep for kind in GROUPS for ep in entry_points(group=f"autoparallel.{kind}")]
    assert len(installed) > 10
    shuffled = random.Random(7).sample(installed, len(installed))
    assert shuffled != installed
    first = answer(installed, mode)
    assert answer(installed[::-1], mode) == first
    assert answer(shuffled, mode) == first
