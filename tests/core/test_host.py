"""The plugin host: finding, naming, disabling, conflicts, and the road over installed distributions."""

from __future__ import annotations

import sys
from itertools import permutations

import pytest
from plugin_helpers import PRELUDE, engine_plugin, install, module, plugin

from autoparallel_core.errors import PluginConflict, SpecError, UnknownPlugin
from autoparallel_core.host import Host, LocalPlugin, host
from autoparallel_core.testing.toys import toy_gpu


def gpu_plugin(name: str, gpu: str, aliases: str = "()") -> LocalPlugin:
    return plugin(
        "hardware",
        f"""
        from autoparallel_core.testing.toys import toy_gpu
        @hookimpl
        def gpus():
            return [toy_gpu({gpu!r}, aliases={aliases})]
        """,
        name=name,
        distribution=f"{name}-dist",
    )


def test_gpus_by_name_and_alias_in_any_case() -> None:
    h = Host(entry_points=[gpu_plugin("b", "T-2000"), gpu_plugin("a", "T-1000", "('Little T', 't1k')")])
    assert list(h.gpus()) == ["T-1000", "T-2000"]
    assert h.gpu("T-1000") == h.gpu("t-1000") == h.gpu("LITTLE t") == toy_gpu("T-1000", aliases=("Little T", "t1k"))
    assert h.provider("gpus", "t1k").name == "a"


def test_unknown_gpu_names_the_near_ones_and_substitutes_nothing() -> None:
    h = Host(entry_points=[gpu_plugin("a", "T-1000", "('Little T',)"), gpu_plugin("b", "Z9")])
    with pytest.raises(UnknownPlugin, match=r"unknown GPU 'T-100'; did you mean T-1000\?"):
        h.gpu("T-100")
    with pytest.raises(UnknownPlugin, match=r"unknown GPU 'quux'; known: Little T, T-1000, Z9"):
        h.gpu("quux")
    with pytest.raises(UnknownPlugin, match="none is installed"):
        Host(entry_points=[]).gpu("T-1000")


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        (("X1", "()"), ("x1", "()"), "x1"),
        (("X1", "('same',)"), ("X2", "('Same',)"), "same"),
        (("X1", "()"), ("X2", "('x1',)"), "x1"),
    ],
)
def test_duplicate_gpu_names_and_aliases_are_refused_naming_both_distributions(first, second, clash) -> None:
    h = Host(entry_points=[gpu_plugin("a", *first), gpu_plugin("b", *second)])
    for question in (h.gpus, h.plugins, lambda: h.gpu("X1")):
        with pytest.raises(PluginConflict) as e:
            question()
        assert f"GPU name '{clash}'" in str(e.value)
        assert "a-dist" in str(e.value)
        assert "b-dist" in str(e.value)


def test_a_plugin_that_states_a_name_twice_is_refused() -> None:
    source = "from autoparallel_core.testing.toys import toy_gpu\n@hookimpl\ndef gpus():\n    return [toy_gpu('X'), toy_gpu('x')]"
    with pytest.raises(PluginConflict, match=r"GPU name 'x' is registered twice by plugin 'acme' \(hardware, acme-dist 1.2\)"):
        Host(entry_points=[plugin("hardware", source)]).gpus()


def test_duplicate_engine_planner_and_catalogue_names_are_refused() -> None:
    engine = engine_plugin("one")
    again = LocalPlugin("two", "engines", module("from copy import copy"), "two-dist")
    again.plugin.engines = engine.plugin.engines
    with pytest.raises(PluginConflict, match=r"engine 'one' is registered by both .*one-dist.* and .*two-dist"):
        Host(entry_points=[engine, again]).engines()
    planners = "@hookimpl\ndef planners():\n    return {'best': 'Finds it.'}"
    twice = [plugin("planners", planners, name=n, distribution=f"{n}-dist") for n in "ab"]
    with pytest.raises(PluginConflict, match=r"planner 'best' .*a-dist.*b-dist"):
        Host(entry_points=twice).planners()
    catalogue = "@hookimpl\ndef catalogue():\n    return {'org/M': {'model_type': 'm'}}"
    twice = [plugin("models", catalogue, name=n, distribution=f"{n}-dist") for n in "ab"]
    with pytest.raises(PluginConflict, match=r"catalogue name 'org/m' .*a-dist.*b-dist"):
        Host(entry_points=twice).catalogue()


def test_two_entry_points_of_one_name_are_refused_within_a_group_and_fine_across_groups() -> None:
    a, b = engine_plugin("same"), engine_plugin("same")
    b = LocalPlugin("same", "engines", b.plugin, "other-dist")
    h = Host(entry_points=[a, b])
    with pytest.raises(PluginConflict, match=r"named 'same': one in other-dist, one in same-dist"):
        h.engines()
    across = Host(entry_points=[a, LocalPlugin("same", "hardware", gpu_plugin("same", "G").plugin, "same-dist")])
    assert (list(across.engines()), list(across.gpus())) == (["same"], ["G"])


def test_a_conflict_is_resolved_by_disabling_one_distributions_plugin() -> None:
    a = engine_plugin("same")
    b = LocalPlugin("same", "engines", engine_plugin("other").plugin, "other-dist")
    assert list(Host(disabled=["other-dist:same"], entry_points=[a, b]).engines()) == ["same"]
    assert list(Host(disabled=["same-dist:same"], entry_points=[a, b]).engines()) == ["other"]


def test_engine_names_modes_and_near_names() -> None:
    h = Host(entry_points=[engine_plugin("trainer", modes="('training',)"), engine_plugin("server", modes="('inference',)")])
    assert h.engine("trainer", "training").name == "trainer"
    assert h.engine("TRAINER", "training").name == "trainer"
    with pytest.raises(UnknownPlugin, match=r"unknown engine 'trainr' for training; did you mean trainer\?"):
        h.engine("trainr", "training")
    with pytest.raises(SpecError, match=r"engine 'server' is for inference, not training; engines for training: trainer"):
        h.engine("server", "training")


def test_disabled_by_argument_or_environment_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untouchable(LocalPlugin):
        def load(self):
            raise AssertionError("a disabled plugin was imported")

    points = [engine_plugin("good"), Untouchable("bad", "engines", None, "bad-dist")]
    by_argument = Host(disabled=["bad"], entry_points=points)
    monkeypatch.setenv("AUTOPARALLEL_DISABLE", " bad ,, ")
    by_environment = Host(entry_points=points)
    for h in (by_argument, by_environment):
        assert list(h.engines()) == ["good"]
        assert [(p.name, p.status) for p in h.plugins()] == [("bad", "disabled"), ("good", "loaded")]
        assert h.warnings == ()
        with pytest.raises(UnknownPlugin, match=r"unknown engine 'bad'.*is disabled"):
            h.engine("bad", "training")


def test_disabling_a_name_that_does_not_exist_is_a_warning_with_the_near_name() -> None:
    h = Host(disabled=["trainr"], entry_points=[engine_plugin("trainer")])
    assert list(h.engines()) == ["trainer"]
    assert h.warnings == ("plugin 'trainr' is disabled but does not exist; did you mean trainer?",)


def test_groups_load_only_when_asked() -> None:
    loaded = []

    class Watched(LocalPlugin):
        def load(self):
            loaded.append(self.kind)
            return self.plugin

    points = [Watched("e", "engines", engine_plugin("e").plugin), Watched("g", "hardware", gpu_plugin("g", "G").plugin)]
    h = Host(entry_points=points)
    assert loaded == []
    h.gpu("G")
    assert loaded == ["hardware"]
    h.plugins()
    h.gpus()
    assert sorted(loaded) == ["engines", "hardware"]


def test_one_module_may_serve_two_groups_when_declared_in_both() -> None:
    both = module("""
        from autoparallel_core.testing.toys import toy_gpu
        from autoparallel_core.spec.problem import EngineSpec
        @hookimpl
        def gpus():
            return [toy_gpu("G")]
        @hookimpl
        def engines():
            return [EngineSpec(name="e", modes=("training",), default_version="1", summary="s")]
    """)
    h = Host(entry_points=[LocalPlugin("x", "hardware", both), LocalPlugin("x", "engines", both)])
    assert (list(h.gpus()), list(h.engines()), h.warnings) == (["G"], ["e"], ())
    half = Host(entry_points=[LocalPlugin("x", "hardware", both)])
    assert half.gpus() == {}
    assert "hook 'engines' belongs to group autoparallel.engines; declare an entry point for it there" in half.warnings[0]


DELTA = """
import numpy as np
@hookimpl
def memory(problem, batch):
    return {{"cause": np.full(len(batch), {value})}}
"""


def test_no_result_depends_on_the_order_of_registration() -> None:
    import numpy as np

    from autoparallel_core.spec.strategy import StrategyBatch

    # 1e16 + 1 - 1e16 differs by order in float64, so an unsorted sum would show
    plugins = [engine_plugin(n, DELTA.format(value=v)) for n, v in (("a", 1e16), ("b", 1.0), ("c", -1e16))]
    batch = StrategyBatch.from_columns(3, tp=[1, 2, 4])
    seen = set()
    for order in permutations(plugins):
        h = Host(entry_points=order)
        results = h.memory(problem=PROBLEM, batch=batch)
        total = sum((r["cause"] for _, r in results), np.zeros(3))
        seen.add((tuple(i.name for i, _ in results), total.tobytes(), tuple(h.engines()), tuple(p.name for p in h.plugins())))
    assert len(seen) == 1
    assert next(iter(seen))[0] == ("a", "b", "c")


class _Engine:
    name = "none of these"


class _Problem:
    engine = _Engine()


PROBLEM = _Problem()


def test_installed_distributions_take_the_same_road_as_ours(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PRELUDE + (
        "from autoparallel_core.spec.problem import EngineSpec\n"
        "@hookimpl\ndef engines():\n"
        "    return [EngineSpec(name='host-test-engine', modes=('training',), default_version='1', summary='s')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    install(
        tmp_path,
        "third-party",
        {"third_good": engine, "third_broken": "import a_module_that_is_not_there\n", "third_exits": "raise SystemExit(1)\n"},
        {"engines": {"good": "third_good", "broken": "third_broken", "exits": "third_exits", "gone": "third_good:nothing"}},
    )
    h = Host()
    assert "host-test-engine" in h.engines()
    ours = [w for w in h.warnings if "third-party" in w]
    assert len(ours) == 3
    assert ours[0] == (
        "plugin 'broken' (engines, third-party 1.2) is left out: importing it raised "
        "ModuleNotFoundError: No module named 'a_module_that_is_not_there' (third_broken.py:1)"
    )
    status = {p.name: p.status for p in h.plugins() if p.distribution == "third-party"}
    assert status == {"good": "loaded", "broken": "broken", "exits": "broken", "gone": "broken"}
    for name in ("third_good", "third_broken", "third_exits"):
        sys.modules.pop(name, None)


def test_a_submodule_named_like_a_hook_is_refused_before_it_can_replace_the_hook(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "third_hiding"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"{PRELUDE}@hookimpl\ndef rules(problem):\n    from third_hiding.rules import RULES\n    return RULES\n"
    )
    (package / "rules.py").write_text("RULES = ()\n")
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "third-party-hiding", {}, {"engines": {"hiding": "third_hiding"}})
    (info,) = [p for p in Host().plugins() if p.name == "hiding"]
    assert info.status == "broken"
    assert "submodule 'rules' has the name of a hook" in info.reason
    sys.modules.pop("third_hiding", None)


def test_the_process_wide_host_is_one() -> None:
    assert host() is host()
    assert host() is not Host()
