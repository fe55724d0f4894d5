"""The hooks' documentation: complete, with exact signatures, and its examples work."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import autoparallel_core as ap
from autoparallel_core.errors import SpecError
from autoparallel_core.hookspecs import HOOKS_BY_GROUP, hookimpl
from autoparallel_core.host import Host, LocalPlugin
from autoparallel_core.hosting.loading import hooks_of
from autoparallel_core.search.explain import explain_strategy
from autoparallel_core.search.result import SearchResult
from autoparallel_core.search.rules import rules_for
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec import blocks
from autoparallel_core.spec.cluster import Gpu
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.launch import Launch
from autoparallel_core.spec.module_plan import ModulePlan, ModuleRequest, OperatorRule
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch, parse_strategy
from autoparallel_core.testing import hook_reference
from autoparallel_core.testing.toys import toy_problem

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "hooks.md"
HOOKS = [(group, hook) for group, specs in HOOKS_BY_GROUP.items() for hook in hooks_of(specs)]
NAMES = {
    "np": np, "re": re, "time": time, "Path": Path, "hookimpl": hookimpl, "Gpu": Gpu, "EngineSpec": EngineSpec, "Rule": Rule,
    "Launch": Launch, "ModulePlan": ModulePlan, "Space": Space, "Strategy": Strategy, "SearchResult": SearchResult,
    "explain_strategy": explain_strategy, "enumerate_space": enumerate_space, "rules_for": rules_for,
    "OperatorRule": OperatorRule, "attention_block": blocks.attention_block,
    "mlp_block": blocks.mlp_block, "moe_block": blocks.moe_block, "__file__": __file__,
}  # fmt: skip
CONFIG = {
    "model_type": "toy", "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 2048, "first_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    "num_nextn_predict_layers": 2,
}  # fmt: skip


def section(hook: str) -> str:
    page = PAGE.read_text(encoding="utf-8")
    assert f"### `{hook}`\n" in page, f"docs/reference/hooks.md lacks {hook}"
    return re.split(r"\n##", page.split(f"### `{hook}`\n", 1)[1])[0]


@pytest.mark.parametrize(("group", "hook"), HOOKS)
def test_every_hook_is_on_the_page_with_its_signature_and_an_example(group: str, hook: str) -> None:
    text = section(hook)
    spec = getattr(HOOKS_BY_GROUP[group], hook)
    for name, parameter in list(inspect.signature(spec).parameters.items())[1:]:
        assert f"{name}: {parameter.annotation}" in text
    assert f") -> {inspect.signature(spec).return_annotation}\n" in text
    assert re.search(rf"```python\n@hookimpl\ndef {hook}\(", text)


def test_the_page_is_what_the_specifications_make() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == hook_reference.renewed(page), "run python -m autoparallel_core.testing.hook_reference docs/reference/hooks.md"


def test_a_signature_reads_as_written() -> None:
    assert hook_reference.signature("parse_mixer") == (
        "parse_mixer(config: ConfigView, layer: int) -> Block | Sequence[Block] | None"
    )
    assert hook_reference.signature("gpus") == "gpus() -> Sequence[Gpu] | None"


@pytest.fixture(scope="module")
def host() -> Host:
    """The installed plugins and one made of all the page's examples."""
    from importlib.metadata import entry_points

    plugins = []
    for group, specs in HOOKS_BY_GROUP.items():
        module = ModuleType(f"documented_{group}")
        module.__dict__.update(NAMES)
        for hook in hooks_of(specs):
            (code,) = re.findall(r"```python\n(.*?)```", section(hook), re.DOTALL)
            exec(compile(code, f"hooks.md ({hook})", "exec"), module.__dict__)
        plugins.append(LocalPlugin("documented", group, module))
    installed = [ep for group in HOOKS_BY_GROUP for ep in entry_points(group=f"autoparallel.{group}")]
    return Host(entry_points=[*plugins, *installed])


@pytest.fixture(scope="module")
def problem(host: Host) -> Problem:
    return toy_problem("toy", "training", host=host)


def only(answers: list[tuple[Any, Any]]) -> Any:
    (found,) = [result for info, result in answers if info.name == "documented"]
    return found


def test_the_examples_load_and_register(host: Host) -> None:
    documented = [p for p in host.plugins() if p.name == "documented"]
    assert [(p.kind, p.status) for p in documented] == [(g, "loaded") for g in HOOKS_BY_GROUP]
    assert {h for p in documented for h in p.hooks} == {h for _, h in HOOKS}
    assert host.gpu("t-1000").memory_bytes == 95.6e9
    assert host.catalogue()["toy-org/Toy-8B"]["hidden_size"] == 4096


def test_model_examples(host: Host) -> None:
    view = ConfigView(CONFIG, name="toy")
    assert only(host.parse_family(view))["traits"]["tied"] is True
    assert only(host.parse_mixer(view, 0)).kind == "gqa"
    assert [only(host.parse_ffn(view, layer)).kind for layer in (0, 1)] == ["dense", "moe"]
    view.built = (object(), last := blocks_layer(host, view))
    assert only(host.parse_extras(view)) == {"mtp": (last, last)}
    assert [r for i, r in host.parse_mixer(ConfigView({"model_type": "x"}, name="x"), 0) if i.name == "documented"] == []
    with pytest.raises(SpecError, match="head_dim"):
        host.parse_mixer(ConfigView({k: v for k, v in CONFIG.items() if k != "head_dim"}, name="toy"), 0)


def blocks_layer(host: Host, view: ConfigView) -> Any:
    from autoparallel_core.spec.arch import Layer

    return Layer((only(host.parse_mixer(view, 1)), only(host.parse_ffn(view, 1))))


def test_hardware_examples(host: Host) -> None:
    measured = host.measure({"kind": "copy", "bytes": 1 << 20})
    assert measured is not None
    assert measured["seconds"] > 0
    assert host.measure({"kind": "something else"}) is None
    assert only(host.profiles("T-1000")) == []


def test_engine_examples(host: Host, problem: Problem) -> None:
    batch = StrategyBatch.of([parse_strategy("tp8 pp1 dp4 mbs1 zero1"), parse_strategy("tp16 pp2 dp1 mbs1 zero1")])
    assert host.search_space(problem) == Space(vpp=(1,), zero=(1, 3))
    (rule,) = rules_for(problem, host)
    assert rule.broken(problem, batch).tolist() == [False, True]
    assert rule.sentence(problem, batch[1]) == "tp 16 exceeds the 8 GPUs of a node"
    assert only(host.memory(problem, batch))["gradient buckets"].tolist() == [512e6, 0.0]
    cost = {"dp_comm": np.array([1.0, 4.0]), "gemm": np.array([6.0, 2.0])}
    assert only(host.adjust_cost(problem, batch, cost))["dp_comm"].tolist() == [-0.5, -1.0]


def test_export_and_read_examples_are_inverse(host: Host, problem: Problem) -> None:
    strategy = parse_strategy("tp8 pp2 dp2 mbs1")
    files = host.export(problem, strategy, {})
    assert files == {"launch.sh": "toy-train --tp 8 --pp 2 --dp 2\n"}
    found = host.read(files, problem=problem)
    assert found is not None
    assert (found.engine, found.strategy, found.n_gpus) == ("toy", strategy, 32)
    assert host.read({"other.yaml": "x: 1"}) is None


def test_planner_example(host: Host, problem: Problem) -> None:
    result = ap.search(problem, planner="first", host=host)
    assert result.planner == "first"
    assert result.plans[0].strategy.world == 32
    assert [w for w in host.warnings if "'documented'" in w] == []


def test_module_planner_example(host: Host) -> None:
    (planner,) = [r for i, r in host.call("planners", "module_planner") if i.name == "documented"]
    plan = planner.plan(None, (), {}, ModuleRequest(cluster=None, mesh_names=("dp",), mesh_sizes=(4,)))  # type: ignore[arg-type]
    assert plan.mesh == {"dp": 4}
    assert planner.verify(plan, {}) == {"output_error": 0.0}


def test_operator_rules_example(host: Host) -> None:
    from autoparallel_core.module_planning import with_operator_rules

    options = with_operator_rules({"flops": {"toy.other.default": max}}, host)
    (placements,) = (rule for name, rule in options["rules"].items() if name == "toy.blend.default")
    assert placements([(4, 8), (8,)], (None, None))[0] == (["S(0)"], ["S(0)", "R"])
    assert options["flops"]["toy.blend.default"]([(4.0, 8.0), (8.0,)]) == 64.0
    assert options["flops"]["toy.other.default"] is max
