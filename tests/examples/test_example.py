"""The example distribution's plugins, loaded beside ours from their source, do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from autoparallel_core.cluster import build_cluster
from autoparallel_core.host import Host, LocalPlugin
from autoparallel_core.models import load_model
from autoparallel_core.ops.params import parameter_counts
from autoparallel_core.problem import make_problem
from autoparallel_core.search.api import search
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.rules import rules_for, violations
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
from autoparallel_core.spec.workload import TrainingWorkload
from autoparallel_core.testing import engines, hardware, models

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "autoparallel-example"
MODEL = "example-org/Tandem-7B"


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        ours = [ep for kind in ("models", "hardware", "engines", "planners") for ep in entry_points(group=f"autoparallel.{kind}")]
        theirs = [
            LocalPlugin(name, kind, import_module(f"example_{name}"), "autoparallel-example", "1.0.0")
            for name, kind in (("gaudi", "hardware"), ("lattice", "engines"), ("tandem", "models"))
        ]
        yield Host(entry_points=[*ours, *theirs])


def question(host: Host, engine: str = "lattice", n_gpus: int = 64) -> Problem:
    work = TrainingWorkload(seq_len=8192, global_batch_size=256)
    cluster = build_cluster(host.gpu("Gaudi-3"), n_gpus)
    return make_problem(load_model(MODEL, host), cluster, work, engine=engine, host=host)


def test_all_three_are_found_with_their_distribution(host: Host) -> None:
    mine = {p.name: p for p in host.plugins() if p.distribution == "autoparallel-example"}
    assert {(p.name, p.kind, p.version, p.status) for p in mine.values()} == {
        ("gaudi", "hardware", "1.0.0", "loaded"),
        ("lattice", "engines", "1.0.0", "loaded"),
        ("tandem", "models", "1.0.0", "loaded"),
    }
    assert mine["lattice"].hooks == ("engines", "search_space", "rules", "memory", "adjust_cost")
    assert host.provider("gpus", "gaudi3").name == "gaudi"


def test_the_model_counts_by_hand(host: Host) -> None:
    arch = load_model(MODEL, host)
    h, head, layers = 4096, 128, 40
    per_layer = 2 * h * h + 2 * h * head + 2 * h * 4 * h + 2 * h
    assert parameter_counts(arch)["text"] == layers * per_layer + 65536 * h + h == 7_021_596_672
    assert [
        cache.limit_tokens for cache in (arch.layers[0].blocks[0].cache_per_token[0], arch.layers[1].blocks[0].cache_per_token[0])
    ] == [
        None,
        1024,
    ]


def test_its_rule_refuses_with_its_sentence(host: Host) -> None:
    problem = question(host)
    (found,) = violations(problem, parse_strategy("tp8 pp1 dp4 cp2 mbs1 zero1"), rules_for(problem, host))
    assert found.rule == "tp cp inside a node"
    assert found.sentence == ("tp 8 × cp 2 = 16 GPUs, but a node has 8: lattice keeps both inside a node; tp 8 allows cp up to 1")


def test_its_memory_and_overlap_change_the_figures_by_the_right_amounts(host: Host) -> None:
    problem = question(host)
    batch = StrategyBatch.of([parse_strategy("tp8 pp1 dp8 mbs1 zero1"), parse_strategy("tp8 pp8 dp1 mbs1 zero1")])
    with_engine, without = evaluate(problem, batch, host), evaluate(problem, batch, Host(entry_points=[]))
    assert (with_engine.allocated_bytes - without.allocated_bytes).tolist() == pytest.approx([1.024e9, 0.0])
    bare = without.seconds
    backward = 2 / 3 * (bare["gemm"] + bare["expert_gemm"] + bare["attention"])
    hidden = np.minimum(0.8 * bare["dp_comm"], backward)
    assert hidden[0] > 0
    assert without.total_s - with_engine.total_s == pytest.approx(hidden)
    assert with_engine.blame == {"gradient buckets": "lattice", "dp_comm": "lattice"}


def test_a_search_uses_accelerator_engine_and_model(host: Host) -> None:
    result = search(question(host), host=host, top=3)
    assert result.plans
    assert result.refused["tp cp inside a node"] > 0
    assert result.blame["dp_comm"] == "lattice"
    for plan in result.plans:
        assert plan.strategy.tp * plan.strategy.cp <= 8
        assert plan.strategy.world == 64
        assert plan.memory.capacity_bytes == 128 * 2**30


def test_other_engines_are_untouched_by_it(host: Host) -> None:
    problem = question(host, engine="megatron")
    batch = StrategyBatch.of([parse_strategy("tp8 pp1 dp8 mbs1 zero1")])
    without = evaluate(problem, batch, Host(disabled=["lattice"]))
    assert evaluate(problem, batch, host).total_s == pytest.approx(without.total_s, rel=0)


def test_conformance_from_source(host: Host) -> None:
    problems = [p for _, p in engines.problems_of(host, host.engines()["lattice"])]
    complaints = [
        *hardware.gpu_complaints(host.gpu("Gaudi-3")),
        *engines.spec_complaints(host.engines()["lattice"]),
        *models.config_complaints(host, "tandem", host.catalogue()[MODEL], MODEL),
        *(c for p in problems for c in engines.purity_complaints(host, p, engines.sample(host, p))),
        *(c for p in problems for c in engines.sentence_complaints(host, p)),
        *(c for p in problems for c in engines.foreign_complaints(host, "lattice", p)),
    ]
    assert complaints == []
