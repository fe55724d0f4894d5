"""The plugin host: finds plugins, calls their hooks, and holds what they register under names.

Everything is lazy: metadata is read at the first question, a group's plugins are imported when one of its hooks
is called. Implementations are called one by one in order of plugin name, so neither the order of installation
nor another plugin's exception changes a result. A plugin that fails is left out with one warning that names
plugin, distribution and hook (see :attr:`Host.warnings`), except where leaving it out would make the answer
about its own engine wrong: then the failure is raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points as installed_entry_points
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve

from autoparallel_core.errors import AutoparallelError, PluginConflict, PluginContract, SpecError, UnknownPlugin
from autoparallel_core.hookspecs import GROUPS, PROJECT
from autoparallel_core.hosting.callable_module import make_callable
from autoparallel_core.hosting.calls import HookCalls
from autoparallel_core.hosting.loading import (
    EntryPointLike,
    Group,
    Implementation,
    LocalPlugin,
    PluginInfo,
    hook_arguments,
    info_of,
    load_group,
    where_raised,
)
from autoparallel_core.naming import LISTED, did_you_mean, near_names

if TYPE_CHECKING:
    from autoparallel_core.spec.cluster import Gpu
    from autoparallel_core.spec.problem import EngineSpec

__all__ = ["DISABLE_VARIABLE", "Host", "LocalPlugin", "PluginInfo", "host"]

DISABLE_VARIABLE = "AUTOPARALLEL_DISABLE"
"""Environment variable: plugin names, comma-separated, that are not loaded."""


@cache
def host() -> Host:
    """The process-wide host over all installed plugins (minus those in ``AUTOPARALLEL_DISABLE``)."""
    return Host()


class Host(HookCalls):
    """Installed plugins behind typed questions.

    Args:
        disabled: plugin names (or ``distribution:name``) to leave out, beside those of ``AUTOPARALLEL_DISABLE``.
        entry_points: use these instead of the installed ones.
    """

    def __init__(self, disabled: Iterable[str] = (), entry_points: Iterable[EntryPointLike] | None = None) -> None:
        from_environment = os.environ.get(DISABLE_VARIABLE, "").split(",")
        self._disabled = frozenset(name.strip() for name in (*disabled, *from_environment)) - {""}
        self._given = None if entry_points is None else tuple(entry_points)
        self._found: tuple[EntryPointLike, ...] | None = None
        self._groups: dict[str, Group] = {}
        self._tables: dict[str, dict[str, tuple[PluginInfo, Any]]] = {}
        self._warnings: dict[str, None] = {}
        self._failures: dict[tuple[str, str], str] = {}

    # -- what is there -------------------------------------------------------------------------------------------

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence per plugin or hook that was left out so far, and per disabled name that does not exist."""
        return tuple(self._warnings)

    def plugins(self) -> list[PluginInfo]:
        """All plugins of all groups, sorted by kind and name. Loads them, and what they register under names.

        Raises:
            PluginConflict: two plugins claim one name.
        """
        for kind in GROUPS:
            self._group(kind)
        for registry in ("gpus", "engines", "planners", "catalogue"):
            self._table(registry)
        infos = [p for kind in GROUPS for p in self._groups[kind].plugins]
        return [self._with_failure(p) for p in sorted(infos, key=lambda p: (GROUPS.index(p.kind), p.name))]

    def gpus(self) -> dict[str, Gpu]:
        """GPU presets by name."""
        return {gpu.name: gpu for _, gpu in self._registered("gpus")}

    def gpu(self, name: str) -> Gpu:
        """The preset with this name or alias; case and ``_``, blank or ``-`` between its parts do not matter.

        Raises UnknownPlugin with the near names.
        """
        folded = name.strip().casefold()
        table = self._table("gpus")
        found = table.get(folded) or table.get("-".join(folded.replace("_", " ").replace("-", " ").split()))
        if found is None:
            names = self.gpus()
            spellings = [n for gpu in names.values() for n in (gpu.name, *gpu.aliases)]
            hint = did_you_mean(name, spellings if near_names(name, spellings) or len(spellings) <= LISTED else names)
            raise UnknownPlugin(f"unknown GPU '{name}'; {hint}{self._left_out(name, 'hardware')}")
        gpu: Gpu = found[1]
        return gpu

    def engines(self) -> dict[str, EngineSpec]:
        """Engines by name."""
        return {spec.name: spec for _, spec in self._registered("engines")}

    def engine(self, name: str, mode: Literal["training", "inference"]) -> EngineSpec:
        """The engine of this name for a mode.

        Raises:
            UnknownPlugin: no such engine, with the near names.
            SpecError: it does not run this mode, with those that do.
        """
        engines = self.engines()
        for_mode = [e.name for e in engines.values() if mode in e.modes]
        spec = engines.get(name.strip().casefold())
        if spec is None:
            known = did_you_mean(name, for_mode)
            raise UnknownPlugin(f"unknown engine '{name}' for {mode}; {known}{self._left_out(name, 'engines')}")
        if mode not in spec.modes:
            others = f"engines for {mode}: {', '.join(for_mode) or 'none'}"
            raise SpecError(f"engine '{spec.name}' is for {' and '.join(spec.modes)}, not {mode}; {others}")
        return spec

    def catalogue(self) -> dict[str, Mapping[str, Any]]:
        """Model configs by name."""
        return dict(item for _, item in self._registered("catalogue"))

    def planners(self) -> dict[str, str]:
        """Planner names with one sentence each."""
        return dict(item for _, item in self._registered("planners"))

    def provider(self, registry: Literal["gpus", "engines", "catalogue", "planners"], name: str) -> PluginInfo:
        """The plugin that registered a name. Raises UnknownPlugin."""
        table = self._table(registry)
        if name.casefold() not in table:
            raise UnknownPlugin(f"no plugin registers '{name}' in {registry}; {did_you_mean(name, table)}")
        return self._with_failure(table[name.casefold()][0])

    # -- calling hooks -------------------------------------------------------------------------------------------

    def call(self, group: str, hook: str, **arguments: Any) -> list[tuple[PluginInfo, Any]]:
        """Call every plugin's implementation of a hook; results that are not None, in order of plugin name.

        An :class:`AutoparallelError` raised inside a hook is meant for the user and passes. Any other exception,
        and a result that the hook's contract does not allow, leaves that plugin out of this call with one warning.

        Raises:
            PluginContract: the plugin that failed provides the very engine that the problem is about.
        """
        out = []
        for implementation in self._implementations(group, hook, arguments):
            try:
                result = implementation(arguments)
            except AutoparallelError:
                raise
            except Exception as e:  # noqa: BLE001  one plugin's defect must not cost the others' results
                self._blame(implementation, f"raised {where_raised(e)}", arguments, e)
                continue
            if result is None:
                continue
            if complaint := implementation.check(result, arguments):
                self._blame(implementation, complaint, arguments)
                continue
            out.append((implementation.info, result))
        return out

    def implementation(self, plugin: PluginInfo, hook: str) -> Implementation:
        """How one plugin implements a hook; called with a mapping of arguments. Raises LookupError when it does not."""
        for i in self._group(plugin.kind).implementations.get(hook, ()):
            if i.info.name == plugin.name:
                return i
        raise LookupError(f"{plugin} does not implement hook {hook}")

    def first(self, group: str, hook: str, **arguments: Any) -> Any | None:
        """As call, for hooks that only one plugin may answer. None when none does.

        Raises:
            PluginConflict: two plugins answer.
        """
        answers = self.call(group, hook, **arguments)
        if len(answers) > 1:
            raise PluginConflict(f"hook {hook} is answered by both {answers[0][0]} and {answers[1][0]}")
        return answers[0][1] if answers else None

    # -- inside --------------------------------------------------------------------------------------------------

    def _entry_points(self) -> tuple[EntryPointLike, ...]:
        if self._found is None:
            every = self._given
            if every is None:
                every = tuple(ep for kind in GROUPS for ep in installed_entry_points(group=f"{PROJECT}.{kind}"))
            distinct = {(ep.group, ep.name, ep.value, info_of(ep).distribution): ep for ep in every}
            self._found = tuple(distinct.values())
            infos = [info_of(ep) for ep in self._found]
            for name in sorted(self._disabled):
                if not any(name in _spellings(p) for p in infos):
                    self._warn(f"plugin '{name}' is disabled but does not exist; {did_you_mean(name, [p.name for p in infos])}")
        return self._found

    def _group(self, kind: str) -> Group:
        if kind not in self._groups:
            if kind not in GROUPS:
                raise LookupError(f"no plugin group '{kind}'; {did_you_mean(kind, GROUPS)}")
            group = load_group(kind, self._entry_points(), lambda p: not self._disabled.isdisjoint(_spellings(p)))
            for sentence in group.warnings:
                self._warn(sentence)
            self._groups[kind] = group
        return self._groups[kind]

    def _implementations(self, kind: str, hook: str, arguments: Mapping[str, Any]) -> Sequence[Implementation]:
        by_hook = (self._groups.get(kind) or self._group(kind)).implementations
        if hook not in by_hook:
            raise LookupError(f"group {kind} has no hook '{hook}'; {did_you_mean(hook, by_hook)}")
        if arguments.keys() != _argument_set(hook):
            raise TypeError(f"hook {hook} takes {', '.join(hook_arguments(hook)) or 'nothing'}, not {', '.join(arguments)}")
        return by_hook[hook]

    def _blame(
        self, implementation: Implementation, complaint: str, arguments: Mapping[str, Any], cause: Exception | None = None
    ) -> None:
        info, hook = implementation.info, implementation.hook
        sentence = f"{info}: hook {hook} {complaint}"
        problem = arguments.get("problem")
        if problem is not None:
            owner = self._table("engines").get(problem.engine.name.casefold())
            if owner is not None and owner[0] == info:
                raise PluginContract(sentence) from cause
        self._failures.setdefault((info.kind, info.name), f"hook {hook} {complaint}")
        self._warn(f"{sentence}; its result is left out")

    def _warn(self, sentence: str) -> None:
        self._warnings[sentence] = None

    def _with_failure(self, info: PluginInfo) -> PluginInfo:
        reason = self._failures.get((info.kind, info.name))
        return info if reason is None else evolve(info, status="broken", reason=reason)

    def _left_out(self, name: str, kind: str) -> str:
        """Says so when the name asked for is that of a plugin that is not in use."""
        for p in map(self._with_failure, self._group(kind).plugins):
            if p.name.casefold() == name.strip().casefold() and p.status != "loaded":
                return f" ({p} is {p.status}: {p.reason})" if p.status == "broken" else f" ({p} is disabled)"
        return ""

    def _registered(self, registry: str) -> list[tuple[PluginInfo, Any]]:
        """What was registered, each once, sorted by name."""
        distinct = {id(item): (info, item) for info, item in self._table(registry).values()}
        return sorted(distinct.values(), key=lambda entry: _REGISTRIES[registry][1](entry[1])[0])

    def _table(self, registry: str) -> dict[str, tuple[PluginInfo, Any]]:
        """By case-folded name or alias: the plugin and what it registered. Raises PluginConflict."""
        if registry not in self._tables:
            kind, names_of = _REGISTRIES[registry]
            table: dict[str, tuple[PluginInfo, Any]] = {}
            for info, result in self.call(kind, registry):
                items = result.items() if isinstance(result, Mapping) else result
                for item in items:
                    for name in dict.fromkeys(n.casefold() for n in names_of(item)):
                        if name in table:
                            raise PluginConflict(_conflict(registry, name, table[name][0], info))
                        table[name] = (info, item)
            self._tables[registry] = table
        return self._tables[registry]


_REGISTRIES: Mapping[str, tuple[str, Callable[[Any], Sequence[str]]]] = {
    "gpus": ("hardware", lambda gpu: (gpu.name, *gpu.aliases)),
    "engines": ("engines", lambda spec: (spec.name,)),
    "planners": ("planners", lambda item: (item[0],)),
    "catalogue": ("models", lambda item: (item[0],)),
}


@cache
def _argument_set(hook: str) -> frozenset[str]:
    return frozenset(hook_arguments(hook))


def _spellings(info: PluginInfo) -> frozenset[str]:
    return frozenset({info.name, f"{info.distribution}:{info.name}"})


def _conflict(registry: str, name: str, first: PluginInfo, second: PluginInfo) -> str:
    what = {"gpus": "GPU name", "engines": "engine", "planners": "planner", "catalogue": "catalogue name"}[registry]
    if first == second:
        return f"{what} '{name}' is registered twice by {first}"
    return (
        f"{what} '{name}' is registered by both {first} and {second}; "
        f"leave one out with --no-plugin {second.distribution}:{second.name}"
    )


make_callable(__name__, f"{__name__}:host")
