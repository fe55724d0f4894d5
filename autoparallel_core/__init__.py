"""Auto-parallelism advisor for training and serving large language models: the public API.

Importing this package loads nothing else; each name below is imported when it is first used.

Example::

    import autoparallel_core as ap

    arch = ap.load_model("path/to/config.json", ap.host())
    cluster = ap.build_cluster(ap.host().gpu("name or alias"), 64)
    workload = ap.TrainingWorkload(seq_len=8192, global_batch_size=512)
    problem = ap.make_problem(arch, cluster, workload, engine="name", host=ap.host())
    print(ap.search(problem).plans[0].strategy)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoparallel_core.cluster import build_cluster as build_cluster
    from autoparallel_core.cluster import read_cluster_toml as read_cluster_toml
    from autoparallel_core.errors import AutoparallelError as AutoparallelError
    from autoparallel_core.errors import Infeasible as Infeasible
    from autoparallel_core.errors import PluginConflict as PluginConflict
    from autoparallel_core.errors import PluginContract as PluginContract
    from autoparallel_core.errors import RuleViolation as RuleViolation
    from autoparallel_core.errors import SpecError as SpecError
    from autoparallel_core.errors import UnknownPlugin as UnknownPlugin
    from autoparallel_core.errors import VerificationFailed as VerificationFailed
    from autoparallel_core.hookspecs import hookimpl as hookimpl
    from autoparallel_core.host import Host as Host
    from autoparallel_core.host import LocalPlugin as LocalPlugin
    from autoparallel_core.host import PluginInfo as PluginInfo
    from autoparallel_core.host import host as host
    from autoparallel_core.models import build_arch as build_arch
    from autoparallel_core.models import load_model as load_model
    from autoparallel_core.module_planning import apply as apply
    from autoparallel_core.module_planning import build_module as build_module
    from autoparallel_core.module_planning import plan as plan
    from autoparallel_core.module_planning import verify as verify
    from autoparallel_core.problem import make_problem as make_problem
    from autoparallel_core.search.api import search as search
    from autoparallel_core.search.evaluate import evaluate as evaluate
    from autoparallel_core.search.explain import explain_strategy as explain_strategy
    from autoparallel_core.search.frontier import frontier as frontier
    from autoparallel_core.search.outlook import outlook as outlook
    from autoparallel_core.search.pools import compare_pools as compare_pools
    from autoparallel_core.search.rules import rules_for as rules_for
    from autoparallel_core.search.rules import violations as violations
    from autoparallel_core.spec.module_plan import ModulePlan as ModulePlan
    from autoparallel_core.spec.module_plan import read_module_plan as read_module_plan
    from autoparallel_core.spec.module_source import ModuleSource as ModuleSource
    from autoparallel_core.spec.problem import EngineSpec as EngineSpec
    from autoparallel_core.spec.problem import Problem as Problem
    from autoparallel_core.spec.rule import Rule as Rule
    from autoparallel_core.spec.space import Space as Space
    from autoparallel_core.spec.strategy import Strategy as Strategy
    from autoparallel_core.spec.strategy import StrategyBatch as StrategyBatch
    from autoparallel_core.spec.strategy import parse_strategy as parse_strategy
    from autoparallel_core.spec.workload import InferenceWorkload as InferenceWorkload
    from autoparallel_core.spec.workload import Software as Software
    from autoparallel_core.spec.workload import TrainingWorkload as TrainingWorkload

    explain = explain_strategy

_WHERE = {
    "cluster": ("build_cluster", "read_cluster_toml"),
    "errors": (
        "AutoparallelError", "Infeasible", "PluginConflict", "PluginContract", "RuleViolation", "SpecError", "UnknownPlugin",
        "VerificationFailed",
    ),
    "hookspecs": ("hookimpl",),
    "host": ("Host", "LocalPlugin", "PluginInfo"),
    "models": ("build_arch", "load_model"),
    "module_planning": ("apply", "build_module", "plan", "verify"),
    "problem": ("make_problem",),
    "search.evaluate": ("evaluate",),
    "search.explain": ("explain_strategy",),
    "search.frontier": ("frontier",),
    "search.outlook": ("outlook",),
    "search.pools": ("compare_pools",),
    "search.rules": ("rules_for", "violations"),
    "spec.module_plan": ("ModulePlan", "read_module_plan"),
    "spec.module_source": ("ModuleSource",),
    "spec.problem": ("EngineSpec", "Problem"),
    "spec.rule": ("Rule",),
    "spec.space": ("Space",),
    "spec.strategy": ("Strategy", "StrategyBatch", "parse_strategy"),
    "spec.workload": ("InferenceWorkload", "Software", "TrainingWorkload"),
}  # fmt: skip
_SOURCES = {name: (module, name) for module, names in _WHERE.items() for name in names}
_SOURCES["explain"] = ("search.explain", "explain_strategy")
_CALLABLE_MODULES = ("host", "search")
"""Modules named like the function they offer: they are callable (see ``callable_module``)."""

__all__ = sorted([*_SOURCES, *_CALLABLE_MODULES])  # noqa: PLE0605  names are listed once, in _WHERE


def __getattr__(name: str) -> Any:
    if name in _CALLABLE_MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _SOURCES[name]
    value = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
