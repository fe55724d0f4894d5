"""What each hook may return: one check per hook, each answering with a complaint or None.

The host applies them to every result, so that a plugin which returns the wrong thing is named before its
figures reach an answer. Shapes follow the legend of ``hookspecs``: S strategies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import PurePath
from typing import Any

from autoparallel_core.spec.arch import Block, Layer
from autoparallel_core.spec.cluster import Gpu
from autoparallel_core.spec.launch import Launch
from autoparallel_core.spec.problem import EngineSpec
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import RECOMPUTE

Check = Callable[[Any, Mapping[str, Any]], str | None]
"""``check(result, arguments of the call)`` → what is wrong, None when nothing is."""


def kind_of(value: Any) -> str:
    """How a value is called in a complaint: its type's name."""
    return type(value).__name__


def _items(value: Any, item: type, what: str) -> str | None:
    """A sequence (not a string) whose members are all ``item``."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return f"must return a sequence of {what}, not {kind_of(value)}"
    for i, v in enumerate(value):
        if not isinstance(v, item):
            return f"must return a sequence of {what}; item {i} is {kind_of(v)}"
    return None


def _mapping(value: Any, item: type | tuple[type, ...], what: str) -> str | None:
    """A mapping from non-empty strings to ``item``."""
    if not isinstance(value, Mapping):
        return f"must return a mapping of {what}, not {kind_of(value)}"
    for k, v in value.items():
        if not isinstance(k, str) or not k:
            return f"must return a mapping of {what}; key {k!r} is not a name"
        if not isinstance(v, item):
            return f"must return a mapping of {what}; the value of '{k}' is {kind_of(v)}"
    return None


def _known(value: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    unknown = next((k for k in value if k not in keys), None)
    return f"key '{unknown}' is unknown; known: {', '.join(keys)}" if unknown else None


def check_blocks(result: Any, _: Mapping[str, Any]) -> str | None:
    """``parse_mixer``, ``parse_ffn``: one Block or a sequence of them."""
    return None if isinstance(result, Block) else _items(result, Block, "Block")


def check_family(result: Any, _: Mapping[str, Any]) -> str | None:
    """``parse_family``: mappings under the keys ``defaults``, ``traits`` and ``fields``."""
    return _mapping(result, Mapping, "str → mapping") or _known(result, ("defaults", "traits", "fields"))


def check_extras(result: Any, _: Mapping[str, Any]) -> str | None:
    """``parse_extras``: sequences of Layer by part of the model."""
    if complaint := _mapping(result, object, "str → sequence of Layer"):
        return complaint
    if complaint := _known(result, ("mtp", "towers", "prologue", "epilogue")):
        return complaint
    for key, layers in result.items():
        if complaint := _items(layers, Layer, "Layer"):
            return f"{complaint} (key '{key}')"
    return None


def check_catalogue(result: Any, _: Mapping[str, Any]) -> str | None:
    """``catalogue``: config mappings by model name."""
    return _mapping(result, Mapping, "str → config")


def _bad_number(value: Any) -> bool:
    return isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0


_POSITIVE = (
    "memory_bytes", "marketing_memory_bytes", "hbm_bytes_per_s", "scale_up_domain", "gpus_per_node", "host_memory_bytes_per_node",
)  # fmt: skip
_MAY_BE_ZERO = ("scale_up_bytes_per_s", "nic_bytes_per_s")


def check_gpu(gpu: Gpu) -> str | None:
    """The figures a cost model divides by: numbers, finite, positive."""
    for name in (*_POSITIVE, *_MAY_BE_ZERO):
        value = getattr(gpu, name)
        if _bad_number(value) or (value == 0 and name in _POSITIVE):
            return f"GPU '{gpu.name}': {name} is {value!r}, expected a positive number"
    if not isinstance(gpu.peak_flops, Mapping) or not gpu.peak_flops:
        return f"GPU '{gpu.name}': peak_flops is empty"
    tables: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("peak_flops", gpu.peak_flops),
        ("training", gpu.training),
        ("serving", gpu.serving),
    )
    for table, figures in tables:
        for key, value in figures.items():
            if _bad_number(value):
                return f"GPU '{gpu.name}': {table}[{key!r}] is {value!r}, expected a number that is finite and not negative"
    return None


def check_gpus(result: Any, _: Mapping[str, Any]) -> str | None:
    """``gpus``: presets whose figures are numbers."""
    return _items(result, Gpu, "Gpu") or next((c for gpu in result if (c := check_gpu(gpu))), None)


def check_engines(result: Any, _: Mapping[str, Any]) -> str | None:
    """``engines``: specs with known modes and finite constants."""
    if complaint := _items(result, EngineSpec, "EngineSpec"):
        return complaint
    for spec in result:
        if not spec.modes or set(spec.modes) - {"training", "inference"}:
            return f"engine '{spec.name}': modes is {spec.modes!r}, expected training, inference or both"
        for name, constant in spec.constants.items():
            value = getattr(constant, "value", constant)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
                return f"engine '{spec.name}': constant '{name}' is {value!r}, expected a Constant with a finite value"
    return None


_LOWEST = {"sp": 0, "zero": 0, "offload": 0}


def check_space(result: Any, _: Mapping[str, Any]) -> str | None:
    """``search_space``: whole numbers per axis, known recompute names."""
    if not isinstance(result, Space):
        return f"must return Space, not {kind_of(result)}"
    for axis in ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "attn_dp", "zero", "mbs", "offload"):
        for v in getattr(result, axis):
            if isinstance(v, bool) or not isinstance(v, int) or v < _LOWEST.get(axis, 1):
                return f"axis {axis} has the value {v!r}, expected whole numbers of at least {_LOWEST.get(axis, 1)}"
    if unknown := [r for r in result.recompute if r not in RECOMPUTE]:
        return f"axis recompute has the value {unknown[0]!r}; known: {', '.join(RECOMPUTE)}"
    return None


def check_rules(result: Any, _: Mapping[str, Any]) -> str | None:
    """``rules``: Rule objects with distinct ids."""
    if complaint := _items(result, Rule, "Rule"):
        return complaint
    ids = [rule.id for rule in result]
    twice = next((i for i in ids if ids.count(i) > 1), None)
    return f"states the rule '{twice}' twice" if twice else None


def check_arrays(result: Any, arguments: Mapping[str, Any]) -> str | None:
    """``memory``, ``adjust_cost``: finite float64[S] by cause, S the length of the batch."""
    import numpy as np

    if complaint := _mapping(result, np.ndarray, "str → float64[S] array"):
        return complaint
    batch = arguments["batch"]
    n = len(batch)
    for cause, values in result.items():
        if values.dtype != np.float64 or values.shape != (n,):
            return f"'{cause}' is {values.dtype}{list(values.shape)}, expected float64[{n}], one value per strategy"
        finite = np.isfinite(values)
        if not finite.all():
            i = int(np.argmin(finite))
            return f"'{cause}' is {values[i]} for strategy '{batch[i]}'"
    return None


def check_mask(result: Any, n: int) -> str | None:
    """A rule's predicate: bool[S]."""
    import numpy as np

    if not isinstance(result, np.ndarray):
        return f"must return a bool[{n}] array, not {kind_of(result)}"
    if result.dtype != np.bool_ or result.shape != (n,):
        return f"returned {result.dtype}{list(result.shape)}, expected bool[{n}], one value per strategy"
    return None


def check_files(result: Any, _: Mapping[str, Any]) -> str | None:
    """``export``: texts by relative path that stays inside the target directory."""
    if complaint := _mapping(result, str, "relative path → text"):
        return complaint
    bad = next((p for p in result if PurePath(p).is_absolute() or ".." in PurePath(p).parts), None)
    return f"path '{bad}' leaves the target directory" if bad else None


def check_launch(result: Any, arguments: Mapping[str, Any]) -> str | None:
    """``read``: a Launch, with its strategy once the problem is known."""
    if not isinstance(result, Launch):
        return f"must return Launch, not {kind_of(result)}"
    if arguments["problem"] is not None and result.strategy is None:
        return "must return a Launch with a strategy when it is given the problem"
    return None


def check_result(result: Any, _: Mapping[str, Any]) -> str | None:
    """``plan``: a SearchResult."""
    from autoparallel_core.search.result import SearchResult

    return None if isinstance(result, SearchResult) else f"must return SearchResult, not {kind_of(result)}"


def check_module_planner(result: Any, _: Mapping[str, Any]) -> str | None:
    """``module_planner``: an object with its four methods."""
    from autoparallel_core.spec.module_plan import ModulePlanner

    if isinstance(result, ModulePlanner):
        return None
    return f"must return an object with the methods build, plan, apply and verify, not {kind_of(result)}"


def check_operator_rules(result: Any, _: Mapping[str, Any]) -> str | None:
    """``operator_rules``: rules by operators' full names."""
    from autoparallel_core.spec.module_plan import OperatorRule

    wrong = _mapping(result, OperatorRule, "operator name → OperatorRule")
    if wrong is not None:
        return wrong
    short = next((n for n in result if n.count(".") != 2), None)
    return None if short is None else f"names an operator '{short}'; write namespace.name.overload, as in aten.mm.default"


CHECKS: Mapping[str, Check] = {
    "parse_family": check_family,
    "parse_mixer": check_blocks,
    "parse_ffn": check_blocks,
    "parse_extras": check_extras,
    "catalogue": check_catalogue,
    "gpus": check_gpus,
    "measure": lambda r, _: _mapping(r, object, "str → figure"),
    "profiles": lambda r, _: _items(r, PurePath, "Path"),
    "engines": check_engines,
    "search_space": check_space,
    "rules": check_rules,
    "memory": check_arrays,
    "adjust_cost": check_arrays,
    "export": check_files,
    "read": check_launch,
    "planners": lambda r, _: _mapping(r, str, "planner name → sentence"),
    "plan": check_result,
    "module_planner": check_module_planner,
    "operator_rules": check_operator_rules,
}
