"""A broken plugin costs one warning that names plugin, hook and distribution; everything else works."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugin_helpers import engine_plugin, plugin

from autoparallel_core.errors import PluginContract, SpecError
from autoparallel_core.hookspecs import HOOKS_BY_GROUP
from autoparallel_core.host import Host, LocalPlugin
from autoparallel_core.hosting.contract import CHECKS, check_mask
from autoparallel_core.hosting.loading import hook_arguments, hooks_of
from autoparallel_core.search.rules import apply_rules, violations
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.strategy import StrategyBatch

BATCH = StrategyBatch.from_columns(4, tp=[1, 2, 4, 8])
GOOD = """
import numpy as np
@hookimpl
def memory(problem, batch):
    return {"good": np.ones(len(batch))}
"""


class Question:
    """Stands in for a problem: the host looks at the engine's name only."""

    def __init__(self, engine: str) -> None:
        self.engine = type("E", (), {"name": engine})()


def memory_of(body: str, *, asked: str = "good") -> tuple[list, tuple[str, ...], str]:
    """Results, warnings and the bad plugin's reason when 'bad' has this body and 'good' is fine."""
    h = Host(entry_points=[engine_plugin("bad", body), engine_plugin("good", GOOD)])
    results = h.memory(problem=Question(asked), batch=BATCH)
    return results, h.warnings, next(p.reason for p in h.plugins() if p.name == "bad")


LOADING = {
    "misspelled hook": (
        "@hookimpl\ndef memry(problem, batch):\n    return None",
        "hook 'memry' does not exist; did you mean memory?",
    ),
    "unknown argument": (
        "@hookimpl\ndef memory(problem, strategies):\n    return None",
        "hook 'memory' takes the argument 'strategies', which it is not given; its arguments: problem, batch",
    ),
    "hook wrapper": ("@hookimpl(wrapper=True)\ndef memory(problem, batch):\n    return (yield)", "implemented as a wrapper"),
    "old hook wrapper": ("@hookimpl(hookwrapper=True)\ndef memory(problem, batch):\n    yield", "implemented as a wrapper"),
}


@pytest.mark.parametrize("case", LOADING)
def test_found_when_loading(case: str) -> None:
    body, complaint = LOADING[case]
    results, warnings, reason = memory_of(body)
    assert [i.name for i, _ in results] == ["good"]
    assert len(warnings) == 1
    assert warnings[0].startswith("plugin 'bad' (engines, bad-dist 1.2) is left out: hook '")
    assert complaint in warnings[0]
    assert complaint in reason


CALLING = {
    "raises": ("1 / 0", "raised ZeroDivisionError: division by zero (inline_plugin_"),
    "not a mapping": ("[1.0]", "must return a mapping of str → float64[S] array, not list"),
    "list inside": ("{'x': [1.0] * len(batch)}", "the value of 'x' is list"),
    "scalar": ("{'x': np.float64(1)}", "the value of 'x' is float64"),
    "too short": ("{'x': np.ones(3)}", "'x' is float64[3], expected float64[4], one value per strategy"),
    "too many axes": ("{'x': np.ones((4, 1))}", "'x' is float64[4, 1], expected float64[4]"),
    "integers": ("{'x': np.ones(4, dtype=np.int64)}", "'x' is int64[4], expected float64[4]"),
    "single precision": ("{'x': np.ones(4, dtype=np.float32)}", "'x' is float32[4], expected float64[4]"),
    "nan": ("{'x': np.array([1, 2, np.nan, 4.0])}", "'x' is nan for strategy 'tp4 pp1 dp1 mbs1 sp=off'"),
    "infinity": ("{'x': np.array([1, np.inf, 3, 4.0])}", "'x' is inf for strategy 'tp2 pp1 dp1 mbs1 sp=off'"),
    "unnamed cause": ("{7: np.ones(4)}", "key 7 is not a name"),
}


@pytest.mark.parametrize("case", CALLING)
def test_found_when_called(case: str) -> None:
    expression, complaint = CALLING[case]
    body = f"import numpy as np\n@hookimpl\ndef memory(problem, batch):\n    return {expression}\n"
    results, warnings, reason = memory_of(body)
    assert [(i.name, list(r)) for i, r in results] == [("good", ["good"])]
    assert len(warnings) == 1
    assert warnings[0].startswith("plugin 'bad' (engines, bad-dist 1.2): hook memory ")
    assert complaint in warnings[0]
    assert reason in warnings[0]


@pytest.mark.parametrize("case", CALLING)
def test_the_engine_asked_about_may_not_fail_quietly(case: str) -> None:
    expression, complaint = CALLING[case]
    body = f"import numpy as np\n@hookimpl\ndef memory(problem, batch):\n    return {expression}\n"
    with pytest.raises(PluginContract) as e:
        memory_of(body, asked="bad")
    assert "plugin 'bad' (engines, bad-dist 1.2): hook memory" in str(e.value)
    assert complaint in str(e.value)


def test_a_warning_is_given_once_however_often_the_hook_is_called() -> None:
    h = Host(entry_points=[plugin("models", "@hookimpl\ndef parse_mixer(config, layer):\n    return config.missing")])
    view = ConfigView({}, name="m")
    for layer in range(50):
        assert h.parse_mixer(view, layer) == []
    assert len(h.warnings) == 1


def test_a_user_error_raised_in_a_hook_passes_unchanged() -> None:
    source = """
    from autoparallel_core.errors import SpecError
    @hookimpl
    def parse_mixer(config, layer):
        raise SpecError("config field 'heads' must be positive")
    """
    with pytest.raises(SpecError, match=r"^config field 'heads' must be positive$"):
        Host(entry_points=[plugin("models", source)]).parse_mixer(ConfigView({}, name="m"), 0)


TYPES = {
    "gpus": ("hardware", "['H']", "must return a sequence of Gpu; item 0 is str"),
    "gpus as a generator": ("hardware", "(g for g in ())", "must return a sequence of Gpu, not generator"),
    "gpus with NaN": ("hardware", "[toy_gpu(memory_bytes=float('nan'))]", "GPU 'toy-gpu': memory_bytes is nan"),
    "gpus with text": (
        "hardware",
        "[toy_gpu(hbm_bytes_per_s='3 TB/s')]",
        "hbm_bytes_per_s is '3 TB/s', expected a positive number",
    ),
    "gpus without a peak": ("hardware", "[toy_gpu(peak_flops={})]", "peak_flops is empty"),
    "gpus with an infinite peak": ("hardware", "[toy_gpu(peak_flops={'bf16': float('inf')})]", "peak_flops['bf16'] is inf"),
    "engines": ("engines", "{'e': 1}", "must return a sequence of EngineSpec, not dict"),
    "engines of no mode": ("engines", "[EngineSpec('e', (), '1', 's')]", "modes is ()"),
    "engines with NaN": (
        "engines",
        "[EngineSpec('e', ('training',), '1', 's', constants={'c': Constant(float('nan'), 'm', 's')})]",
        "constant 'c' is nan",
    ),
    "catalogue": ("models", "{'m': 'llm'}", "must return a mapping of str → config; the value of 'm' is str"),
    "planners": ("planners", "['grid']", "must return a mapping of planner name → sentence, not list"),
}


@pytest.mark.parametrize("case", TYPES)
def test_wrong_return_types_of_registries(case: str) -> None:
    kind, expression, complaint = TYPES[case]
    hook = case.split(maxsplit=1)[0]
    source = (
        "from autoparallel_core.testing.toys import toy_gpu\nfrom autoparallel_core.spec.problem import Constant, EngineSpec\n"
        f"@hookimpl\ndef {hook}():\n    return {expression}\n"
    )
    h = Host(entry_points=[LocalPlugin("acme", kind, plugin(kind, source).plugin, "acme-dist", "1.2")])
    assert getattr(h, hook)() == {}
    assert len(h.warnings) == 1
    assert h.warnings[0].startswith(f"plugin 'acme' ({kind}, acme-dist 1.2): hook {hook} ")
    assert complaint in h.warnings[0]
    (info,) = h.plugins()
    assert info.status == "broken"
    assert complaint in info.reason


def test_a_rule_that_raises_is_named_with_its_module_and_line() -> None:
    from attrs import evolve

    source = """
    from autoparallel_core.spec.rule import Rule
    def broken(problem, batch):
        return batch.tp > problem.no_such_field
    RULE = Rule("odd", broken=broken, sentence=lambda problem, s: f"{1 // 0}", source="manual")
    """
    rule = plugin("engines", source).plugin.RULE
    with pytest.raises(
        PluginContract, match=r"rule 'odd' of inline_plugin_\d+ raised AttributeError: .*'no_such_field' \(inline"
    ):
        apply_rules(Question("x"), BATCH, [rule])
    silent = evolve(rule, broken=lambda _, batch: batch.tp > 0)
    with pytest.raises(PluginContract, match=r"rule 'odd' .* raised ZeroDivisionError"):
        violations(Question("x"), BATCH[0], [silent])


def test_no_hook_at_all_and_a_forgotten_decorator() -> None:
    h = Host(entry_points=[plugin("hardware", "x = 1")])
    assert h.gpus() == {}
    assert "it implements no hook of group autoparallel.hardware (gpus, measure, profiles)" in h.warnings[0]
    h = Host(entry_points=[plugin("hardware", "def gpus():\n    return []")])
    assert h.gpus() == {}
    assert "'gpus' is not decorated with hookimpl" in h.warnings[0]


def test_a_class_instead_of_an_instance() -> None:
    h = Host(entry_points=[LocalPlugin("acme", "hardware", type("Hooks", (), {}), "acme-dist")])
    assert h.gpus() == {}
    assert "names the class Hooks; name a module or an instance" in h.warnings[0]


def test_arguments_may_be_left_out_keyword_only_or_swallowed() -> None:
    bodies = {
        "none": "def memory():\n    return {'n': np.ones(4)}",
        "one": "def memory(batch):\n    return {'n': np.ones(len(batch))}",
        "keyword": "def memory(*, batch, problem):\n    return {'n': np.ones(len(batch))}",
        "swallowed": "def memory(**given):\n    assert set(given) == {'problem', 'batch'}\n    return {'n': np.ones(4)}",
        "default": "def memory(batch, scale=2.0):\n    return {'n': np.ones(len(batch)) * scale}",
    }
    points = [engine_plugin(n, f"import numpy as np\n@hookimpl\n{b}\n") for n, b in bodies.items()]
    h = Host(entry_points=points)
    results = {i.name: float(r["n"][0]) for i, r in h.memory(problem=Question("x"), batch=BATCH)}
    assert h.warnings == ()
    assert results == {"none": 1, "one": 1, "keyword": 1, "swallowed": 1, "default": 2}


def test_specname_and_instances_work() -> None:
    source = """
    from autoparallel_core.testing.toys import toy_gpu
    class Hooks:
        @hookimpl(specname="gpus")
        def accelerators(self):
            return [toy_gpu("G")]
    instance = Hooks()
    """
    h = Host(entry_points=[LocalPlugin("acme", "hardware", plugin("hardware", source).plugin.instance)])
    assert list(h.gpus()) == ["G"]
    assert h.plugins()[0].hooks == ("gpus",)


def test_a_caller_that_forgets_an_argument_is_told_so_and_no_plugin_is_blamed() -> None:
    h = Host(entry_points=[engine_plugin("good", GOOD)])
    with pytest.raises(TypeError, match="hook memory takes problem, batch, not batch"):
        h.call("engines", "memory", batch=BATCH)
    with pytest.raises(LookupError, match=r"group engines has no hook 'memry'; did you mean memory\?"):
        h.call("engines", "memry")
    with pytest.raises(LookupError, match=r"no plugin group 'engine'; did you mean engines\?"):
        h.call("engine", "memory")
    assert h.warnings == ()


def test_every_hook_has_a_check_and_a_typed_method() -> None:
    hooks = [h for specs in HOOKS_BY_GROUP.values() for h in hooks_of(specs)]
    assert set(CHECKS) == set(hooks)
    for hook in hooks:
        assert callable(getattr(Host, hook)), hook
    assert hook_arguments("adjust_cost") == ("problem", "batch", "cost")


@given(st.integers(0, 20), st.integers(0, 20))
def test_masks_are_checked_by_length_and_dtype(n: int, length: int) -> None:
    assert (check_mask(np.zeros(length, dtype=bool), n) is None) == (n == length)
    assert check_mask(np.zeros(n), n) == f"returned float64[{n}], expected bool[{n}], one value per strategy"
