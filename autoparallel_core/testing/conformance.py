"""The conformance suite: pytest tests over whatever plugins are installed.

Run all of it with ``pytest --pyargs autoparallel_core.testing.conformance``, or have your own test module say::

    from autoparallel_core.testing.conformance import *  # noqa: F403

    PLUGINS = ["acme"]          # yours; leave out to test every installed plugin
    CONFIGS = {"tiny": {...}}   # configs for your model plugin, beside its catalogue

A test's name says what it checks; a failure lists every complaint, a sentence each.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from autoparallel_core.host import Host, host
from autoparallel_core.hosting.loading import PluginInfo
from autoparallel_core.naming import did_you_mean
from autoparallel_core.testing import engines, hardware, models

__all__ = [
    "pytest_generate_tests",
    "test_catalogue_names_models_that_can_be_read",
    "test_engine_answers_only_about_itself",
    "test_engine_hooks_are_pure_and_rightly_shaped",
    "test_engine_rules_say_why",
    "test_engine_spec_is_stated",
    "test_gpu_figures_are_plausible_si_and_sourced",
    "test_model_plugin_claims_nothing_of_a_stranger",
    "test_model_plugin_is_pure_and_builds_sound_blocks",
    "test_plugin_is_documented",
    "test_plugin_loads_and_implements_hooks",
]


def _plugins(module: Any, kind: str | None = None) -> list[PluginInfo]:
    """The plugins under test: those the test module names, else all that are not disabled."""
    installed = [p for p in host().plugins() if p.status != "disabled"]
    wanted: Sequence[str] | None = getattr(module, "PLUGINS", None)
    if wanted is not None:
        names = {p.name for p in installed}
        for name in wanted:
            if name not in names:
                raise pytest.UsageError(f"PLUGINS names '{name}', which is not installed; {did_you_mean(name, names)}")
        installed = [p for p in installed if p.name in wanted]
    return [p for p in installed if kind in {None, p.kind}]


def _cases(module: Any, argument: str) -> list[tuple[str, Any]]:
    """Id and value of every case of a test argument."""
    if argument == "plugin":
        return [(f"{p.kind}-{p.name}", p) for p in _plugins(module)]
    kind = {"gpu": "hardware", "engine": "engines", "engine_problem": "engines"}.get(argument, "models")
    mine = {p.name for p in _plugins(module, kind)}
    if argument == "gpu":
        return [(n, g) for n, g in host().gpus().items() if host().provider("gpus", n).name in mine]
    if argument == "model_plugin":
        return [(p.name, p) for p in _plugins(module, kind)]
    if argument == "catalogue_entry":
        return [(n, (n, c)) for n, c in host().catalogue().items() if host().provider("catalogue", n).name in mine]
    specs = [s for s in host().engines().values() if host().provider("engines", s.name).name in mine]
    if argument == "engine":
        return [(s.name, s) for s in specs]
    return [(f"{s.name}: {name}", problem) for s in specs for name, problem in engines.problems_of(host(), s)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per plugin, GPU, engine or catalogue entry."""
    for argument in ("plugin", "gpu", "engine", "engine_problem", "model_plugin", "catalogue_entry"):
        if argument in metafunc.fixturenames:
            cases = _cases(metafunc.module, argument)
            metafunc.parametrize(argument, [c for _, c in cases], ids=[i for i, _ in cases])


def _expect_none(complaints: Sequence[str]) -> None:
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)


def test_plugin_loads_and_implements_hooks(plugin: PluginInfo) -> None:
    """It loads, every hook is spelled as specified, and what it registers has the right types."""
    _expect_none([f"{plugin} is {plugin.status}: {plugin.reason}"] if plugin.status != "loaded" or not plugin.hooks else [])


def test_plugin_is_documented(plugin: PluginInfo) -> None:
    """The module says what it is for."""
    functions = [host().implementation(plugin, hook).function for hook in plugin.hooks]
    undocumented = sorted(
        {m.__name__ for f in functions if (m := inspect.getmodule(f)) is not None and not (m.__doc__ or "").strip()}
    )
    _expect_none([f"module {name} has no docstring" for name in undocumented])


def test_gpu_figures_are_plausible_si_and_sourced(gpu: Any) -> None:
    """Figures in SI units, dense peaks, a source for each."""
    _expect_none(hardware.gpu_complaints(gpu))


def test_engine_spec_is_stated(engine: Any) -> None:
    """Name, version, summary, constants with meaning and source."""
    _expect_none(engines.spec_complaints(engine))


def test_engine_hooks_are_pure_and_rightly_shaped(engine_problem: Any) -> None:
    """A batch gives what its halves give; inputs are left alone; arrays are float64[S]; no step beats its computation."""
    warned = len(host().warnings)
    batch = engines.sample(host(), engine_problem)
    if not len(batch):
        pytest.fail("no strategy of the search space is legal", pytrace=False)
    complaints = [
        *engines.purity_complaints(host(), engine_problem, batch),
        *engines.bound_complaints(host(), engine_problem, batch),
    ]
    _expect_none([*complaints, *host().warnings[warned:]])


def test_engine_rules_say_why(engine_problem: Any) -> None:
    """Distinct ids, sources, and one line for what a rule refuses."""
    rules = [rule for _, some in host().rules(engine_problem) for rule in some]
    _expect_none([*engines.rule_complaints(rules), *engines.sentence_complaints(host(), engine_problem)])


def test_engine_answers_only_about_itself(engine_problem: Any) -> None:
    """None for a problem of another engine."""
    provider = host().provider("engines", engine_problem.engine.name).name
    _expect_none(engines.foreign_complaints(host(), provider, engine_problem))


def test_model_plugin_claims_nothing_of_a_stranger(model_plugin: PluginInfo) -> None:
    """None for a config that says nothing."""
    _expect_none(models.stranger_complaints(host(), model_plugin))


def test_model_plugin_is_pure_and_builds_sound_blocks(model_plugin: PluginInfo, request: pytest.FixtureRequest) -> None:
    """Same config, same blocks; distinct names and real sizes inside them."""
    configs: dict[str, Mapping[str, Any]] = {**_known_to(model_plugin.name, host()), **getattr(request.module, "CONFIGS", {})}
    _expect_none(
        [c for name, config in configs.items() for c in models.config_complaints(host(), model_plugin.name, config, name)]
    )


def _known_to(plugin: str, plugins: Host) -> dict[str, Mapping[str, Any]]:
    """One catalogue config per model type; those of the plugin's own catalogue first."""
    by_type: dict[str, tuple[str, Mapping[str, Any]]] = {}
    own_first = sorted(plugins.catalogue().items(), key=lambda item: plugins.provider("catalogue", item[0]).name != plugin)
    for name, config in own_first:
        by_type.setdefault(str(config.get("model_type")), (name, config))
    return dict(by_type.values())


def test_catalogue_names_models_that_can_be_read(catalogue_entry: tuple[str, Mapping[str, Any]]) -> None:
    """Every entry is read by the installed model plugins."""
    from autoparallel_core.models import build_arch

    name, config = catalogue_entry
    _expect_none(models.catalogue_complaints({name: config}))
    arch = build_arch(config, name=name, host=host())
    assert arch.num_layers > 0
