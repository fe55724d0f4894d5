"""The conformance checks find what they are for: each defect put in is reported, and nothing else is."""

from __future__ import annotations

from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from autoparallel_core.hookspecs import HOOKS_BY_GROUP, hookimpl
from autoparallel_core.host import Host, LocalPlugin
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.blocks import mlp_block
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency
from autoparallel_core.spec.op import Axis, Bare, Weight
from autoparallel_core.spec.problem import Constant, EngineSpec, Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.testing import engines, models
from autoparallel_core.testing.hardware import gpu_complaints
from autoparallel_core.testing.toys import toy_batch, toy_gpu, toy_moe_arch, toy_problem

GOOD = Efficiency(0.7, 0.8, "here", "assumed")

IMPLAUSIBLE = {
    "GB as bytes": ({"memory_bytes": 80}, "memory_bytes is 80, outside"),
    "marketing figure": ({"memory_bytes": 140e9, "marketing_memory_bytes": 100e9}, "memory_bytes is 1.40 of marketing"),
    "TB/s as bytes/s": ({"hbm_bytes_per_s": 3.35}, "hbm_bytes_per_s is 3.35, outside"),
    "Gb/s as bytes/s": ({"nic_bytes_per_s": 400.0}, "nic_bytes_per_s is 400, outside"),
    "TFLOP/s as FLOP/s": ({"peak_flops": {"bf16": 989.0}}, "peak_flops[bf16] is 989, outside"),
    "unknown dtype": ({"peak_flops": {"bf16": 1e15, "fp7": 1e15}}, "peak_flops has the dtype 'fp7'"),
    "no 16-bit peak": ({"peak_flops": {"fp8": 1e15}}, "neither bf16 nor fp16"),
    "peaks upside down": ({"peak_flops": {"bf16": 2e15, "fp8": 1e15}}, "peak_flops[bf16] exceeds peak_flops[fp8]"),
    "unbalanced": ({"peak_flops": {"bf16": 9e16}}, "FLOPs per byte"),
    "efficiency over one": ({"gemm": {"bf16": evolve(GOOD, compute=1.4)}}, "gemm[bf16] reaches 1.4 of the peak"),
    "efficiency without source": ({"attention": {"fused": evolve(GOOD, source=" ")}}, "attention[fused] needs a source"),
    "share over one": ({"training": {"gemm_bf16": 75.0}}, "training[gemm_bf16] is 75"),
    "collective beyond the link": (
        {"collectives": {"all_gather": (CollectiveCurve(8, 900e9, 1e-5, "here", "assumed"),)}},
        "collectives[all_gather] of 8 ranks: 9e+11 bytes/s on a link of 4.5e+11",
    ),
    "microseconds as seconds": (
        {"collectives": {"all_gather": (CollectiveCurve(8, 400e9, 12.0, "here", "assumed"),)}},
        "latency 12 s, outside 0 to 10 ms",
    ),
    "no source": ({"sources": {}}, "no source for hbm_bytes_per_s"),
}


def test_the_toy_gpu_is_plausible() -> None:
    assert gpu_complaints(toy_gpu()) == []


@pytest.mark.parametrize("case", IMPLAUSIBLE)
def test_implausible_figures_are_found(case: str) -> None:
    changes, complaint = IMPLAUSIBLE[case]
    assert any(complaint in c for c in gpu_complaints(toy_gpu(**changes)))


def engine(**functions: Any) -> Host:
    """The installed plugins and an engine 'odd' with these hooks."""
    module = ModuleType("odd")
    module.engines = hookimpl(lambda: [EngineSpec("odd", ("training",), "1.0", "odd")])
    for name, function in functions.items():
        setattr(module, name, hookimpl(function))
    installed = [ep for group in HOOKS_BY_GROUP for ep in entry_points(group=f"autoparallel.{group}")]
    return Host(entry_points=[*installed, LocalPlugin("odd", "engines", module)])


def complaints(host: Host) -> list[str]:
    problem = toy_problem("odd", "training", host=host, arch=toy_moe_arch())
    return engines.purity_complaints(host, problem, toy_batch("training", moe=True))


def test_a_pure_engine_passes() -> None:
    def memory(problem: Problem, batch: Any) -> Any:
        return {"x": np.where(batch.dp > 1, 1e9, 0.0)}

    def adjust_cost(problem: Problem, batch: Any, cost: Any) -> Any:
        return {"x": 0.1 * cost["gemm"]}

    assert complaints(engine(memory=memory, adjust_cost=adjust_cost)) == []


def test_figures_that_depend_on_the_other_rows_are_found() -> None:
    def memory(problem: Problem, batch: Any) -> Any:
        return {"x": batch.dp / batch.dp.max() * 1e9}

    assert complaints(engine(memory=memory)) == ["memory of a batch is not that of its halves"]

    def adjust_cost(problem: Problem, batch: Any, cost: Any) -> Any:
        return {"x": cost["gemm"] - cost["gemm"].min()}

    assert complaints(engine(adjust_cost=adjust_cost)) == ["adjust_cost of a batch is not that of its halves"]


def test_state_between_calls_is_found() -> None:
    calls = []

    def memory(problem: Problem, batch: Any) -> Any:
        calls.append(1)
        return {"x": np.full(len(batch), float(len(calls)))}

    assert "memory gives other figures when asked again" in complaints(engine(memory=memory))


def test_writing_to_an_argument_is_found() -> None:
    def adjust_cost(problem: Problem, batch: Any, cost: Any) -> Any:
        cost["gemm"][:] = 0.0

    with pytest.raises(Exception, match="read-only"):
        complaints(engine(adjust_cost=adjust_cost))


def test_a_step_faster_than_its_computation_is_found() -> None:
    magic = engine(adjust_cost=lambda cost: {"gemm": -0.9 * sum(cost.values())})
    problem = toy_problem("odd", "training", host=magic)
    (found,) = engines.bound_complaints(magic, problem, toy_batch("training"))
    assert found.startswith("adjust_cost leaves ")
    assert "which computes for" in found
    fair = engine(adjust_cost=lambda cost: {"tp_comm": -cost["tp_comm"]})
    assert engines.bound_complaints(fair, toy_problem("odd", "training", host=fair), toy_batch("training")) == []


def rule(broken: Any, **changes: Any) -> Rule:
    return evolve(Rule("r", broken=broken, sentence=lambda _, s: f"tp {s.tp}", source="here"), **changes)


def test_impure_and_misshapen_rules_are_found() -> None:
    impure = engine(rules=lambda: [rule(lambda _, b: b.tp == b.tp.max(), id="most"), rule(lambda _, b: b.tp > b.dp, id="fine")])
    problem = toy_problem("odd", "training", host=impure)
    found = engines.purity_complaints(impure, problem, toy_batch("training").take(np.argsort(toy_batch("training").tp)))
    assert found == ["rule 'most' of a batch is not that of its halves"]
    misshapen = engine(rules=lambda: [rule(lambda _, b: b.tp)])
    batch = toy_batch("training")
    found = engines._rule_purity(misshapen, toy_problem("odd", "training", host=misshapen), batch, [batch])
    assert found == [f"rule 'r' returned int64[{len(batch)}], expected bool[{len(batch)}], one value per strategy"]


def test_rules_that_say_nothing_or_have_no_source_are_found() -> None:
    silent = engine(rules=lambda: [rule(lambda _, b: b.tp > 1, sentence=lambda _p, _s: " ")])
    assert engines.sentence_complaints(silent, toy_problem("odd", "training", host=silent))[0].startswith(
        "rule 'r' says ' ' about 'tp"
    )
    assert engines.rule_complaints([rule(None, source="", since="soon", modes=("finetuning",))]) == [
        "rule 'r' needs an id and a source",
        "rule 'r': 'soon' is not a version number such as 0.12.1",
        "rule 'r': modes ('finetuning',)",
    ]
    assert engines.rule_complaints([rule(None), rule(None)]) == ["rule 'r' is stated twice"]


def test_an_engine_that_answers_for_others_is_found() -> None:
    nosy = engine(memory=lambda batch: {"x": np.ones(len(batch))}, search_space=lambda: None)
    problem = toy_problem("odd", "training", host=nosy)
    assert engines.foreign_complaints(nosy, "odd", problem) == ["memory answers about another engine"]


def test_engine_specs_without_words_are_found() -> None:
    spec = EngineSpec("Odd One", ("training",), "new", " ", constants={"c": Constant(1.0, "", "here")})
    assert engines.spec_complaints(spec) == [
        "engine Odd One: the name must be lower case, without spaces",
        "engine Odd One: the summary is empty",
        "engine Odd One: default_version 'new' is not a version number such as 0.12.1",
        "engine Odd One: constant c needs a meaning and a source",
    ]


def test_malformed_blocks_are_found() -> None:
    good = mlp_block(hidden=64, intermediate=128)
    assert models.block_complaints(good) == []
    twice = Block("Dense", (*good.ops, good.ops[0]), specificity=-1)
    assert models.block_complaints(twice) == [
        "block 'Dense': the kind must be a short lower-case name",
        "block 'Dense': specificity -1 is outside 0 to 100",
        "block 'Dense': two operators are named 'post_attention_layernorm'",
        "block 'Dense': two operators own the weight 'post_attention_layernorm.weight'",
    ]
    empty = Block("x", (Bare("b", weights=(Weight("w", (Axis("hidden", 0),), "other"),)),))
    assert models.block_complaints(empty) == ["block 'x': weight 'w' has no elements"]


def test_a_model_plugin_that_claims_everything_or_changes_its_mind_is_found() -> None:
    count = []

    def parse_ffn(config: Any) -> Any:
        count.append(1)
        return mlp_block(hidden=config.size("hidden_size"), intermediate=len(count), specificity=50)

    module = ModuleType("greedy")
    module.parse_ffn = hookimpl(parse_ffn)
    installed = [ep for group in HOOKS_BY_GROUP for ep in entry_points(group=f"autoparallel.{group}")]
    host = Host(entry_points=[*installed, LocalPlugin("greedy", "models", module)])
    (info,) = [p for p in host.plugins() if p.name == "greedy"]
    assert [c.split(" of a model")[0] for c in models.stranger_complaints(host, info)] == ["parse_ffn claims part"]
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 128, "vocab_size": 100, "tie_word_embeddings": False,
    }  # fmt: skip
    assert models.config_complaints(host, "greedy", config, "m") == ["m: gives another answer when asked again"]


def test_catalogue_entries_need_an_organisation_and_a_type() -> None:
    assert models.catalogue_complaints({"org/A": {"model_type": "a"}, "B": {}}) == [
        "catalogue name 'B' is not of the form organisation/model",
        "B: model_type is missing",
    ]
