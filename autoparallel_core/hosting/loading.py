"""From entry points to callable hook implementations, one group at a time.

pluggy's own entry-point loader stops at the first import that fails, skips a name it has seen in another
group, and lets a misspelled hook pass; so entry points are loaded here, each on its own, and registered with
one plugin manager per group (the same module may serve two groups). A plugin that cannot be used keeps its
place with the reason, so that it can be shown.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal, Protocol

import pluggy
from attrs import evolve, field, frozen

from autoparallel_core.errors import PluginConflict
from autoparallel_core.hookspecs import HOOKS_BY_GROUP, PROJECT, hookspec
from autoparallel_core.hosting.contract import CHECKS, Check
from autoparallel_core.naming import did_you_mean

Status = Literal["loaded", "broken", "disabled"]


@frozen
class PluginInfo:
    """One plugin as ``autoparallel plugins`` shows it. ``reason`` says why it is not, or not wholly, in use."""

    name: str
    """The entry point's name."""
    kind: str
    """Its group without the prefix: models, hardware, engines, planners."""
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    status: Status = "loaded"
    reason: str = ""

    def __str__(self) -> str:
        return f"plugin '{self.name}' ({self.kind}, {self.distribution} {self.version})".replace(" )", ")")


class EntryPointLike(Protocol):
    """What the loader needs of :class:`importlib.metadata.EntryPoint`."""

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def dist(self) -> Any:
        """Its distribution (``name``, ``version``), or None."""

    @property
    def value(self) -> str:
        """What it points to; two entry points of one module have equal values."""

    def load(self) -> Any: ...


@frozen
class LocalPlugin:
    """A plugin that no distribution installs: an object at hand, used like an entry point (tests, notebooks).

    Example::

        Host(entry_points=[LocalPlugin("mine", "engines", module)])
    """

    name: str
    kind: str
    plugin: Any
    distribution: str = "local"
    version: str = ""

    @property
    def group(self) -> str:
        return f"{PROJECT}.{self.kind}"

    @property
    def dist(self) -> Any:
        return _Distribution(self.distribution, self.version)

    @property
    def value(self) -> str:
        return f"object {id(self.plugin)}"

    def load(self) -> Any:
        return self.plugin


@frozen
class _Distribution:
    name: str
    version: str


@frozen
class Implementation:
    """One plugin's function for one hook."""

    info: PluginInfo
    hook: str
    function: Callable[..., Any]
    arguments: tuple[str, ...] | None
    """Arguments it takes; None: all of the hook's."""
    check: Check

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        if self.arguments is None:
            return self.function(**arguments)
        return self.function(**{a: arguments[a] for a in self.arguments})


@frozen
class Group:
    """A loaded group: its plugins by name, its implementations by hook, both in order of plugin name."""

    plugins: tuple[PluginInfo, ...]
    implementations: Mapping[str, tuple[Implementation, ...]]
    warnings: tuple[str, ...] = field(default=())


def hook_arguments(hook: str) -> tuple[str, ...]:
    """Argument names of a hook, in the order of its specification."""
    spec = next(getattr(c, hook) for c in HOOKS_BY_GROUP.values() if hook in hooks_of(c))
    return tuple(inspect.signature(spec).parameters)[1:]


def hooks_of(specs: type) -> tuple[str, ...]:
    """Hook names that a class of specifications defines."""
    return tuple(n for n, f in vars(specs).items() if hasattr(f, f"{hookspec.project_name}_spec"))


def info_of(entry_point: EntryPointLike) -> PluginInfo:
    """Name, kind, distribution and version, without importing anything."""
    dist = entry_point.dist
    return PluginInfo(
        name=entry_point.name,
        kind=entry_point.group.rpartition(".")[2],
        distribution=dist.name if dist is not None else "unknown distribution",
        version=dist.version if dist is not None else "",
    )


def where_raised(error: BaseException, own: str = __file__) -> str:
    """``Type: message (file.py:line)`` for a warning: the innermost frame that is not the host's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != own and "importlib" not in f.filename]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text if text else ''}{place}"


class _Unusable(Exception):
    """Carries the reason why a plugin is left out."""


def load_group(kind: str, entry_points: Sequence[EntryPointLike], is_disabled: Callable[[PluginInfo], bool]) -> Group:
    """Import and register the plugins of one group.

    Args:
        kind: the group, without its prefix.
        entry_points: those of all groups (one module may be declared in several).
        is_disabled: whether the user switched a plugin off; it is not imported then.

    Raises:
        PluginConflict: two distributions declare the same name in this group.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HOOKS_BY_GROUP[kind])
    plugins: dict[str, PluginInfo] = {}
    warnings: list[str] = []
    own = [e for e in entry_points if info_of(e).kind == kind]
    for ep in sorted(own, key=lambda e: (e.name, info_of(e).distribution)):
        info = info_of(ep)
        if is_disabled(info):
            plugins.setdefault(info.name, evolve(info, status="disabled", reason="disabled by the user"))
            continue
        other = plugins.get(info.name)
        if other is not None and other.status != "disabled":
            raise PluginConflict(
                f"two plugins of kind {kind} are named '{info.name}': one in {other.distribution}, one in {info.distribution}; "
                f"uninstall one, or leave one out with --no-plugin {info.distribution}:{info.name}"
            )
        try:
            plugin = _load(ep, info)
            declared = {info_of(e).kind for e in entry_points if e.value == ep.value}
            plugins[info.name] = evolve(info, hooks=_register(manager, plugin, info, declared))
        except _Unusable as e:
            plugins[info.name] = evolve(info, status="broken", reason=str(e))
            warnings.append(f"{info} is left out: {e}")
    return Group(
        plugins=tuple(plugins.values()),
        implementations={hook: _implementations(manager, hook, plugins) for hook in hooks_of(HOOKS_BY_GROUP[kind])},
        warnings=tuple(warnings),
    )


def _load(entry_point: EntryPointLike, info: PluginInfo) -> Any:
    try:
        plugin = entry_point.load()
    except (Exception, SystemExit) as e:  # whatever foreign code does at import must not take the rest down
        raise _Unusable(f"importing it raised {where_raised(e)}") from e
    if inspect.isclass(plugin):
        raise _Unusable(f"its entry point names the class {plugin.__name__}; name a module or an instance")
    if plugin is None:
        raise _Unusable(f"entry point '{info.name}' gave None; name a module or an instance")
    return plugin


def _register(manager: pluggy.PluginManager, plugin: Any, info: PluginInfo, declared: set[str]) -> tuple[str, ...]:
    """Check every marked function against the specifications, then register. Returns the hooks implemented.

    ``declared``: the groups in which the same module is an entry point.
    """
    own = hooks_of(HOOKS_BY_GROUP[info.kind])
    if hidden := next((m.name for m in iter_modules(getattr(plugin, "__path__", ())) if m.name in own), None):
        raise _Unusable(
            f"its submodule '{hidden}' has the name of a hook, and importing it would replace that hook; rename the file"
        )
    hooks: list[str] = []
    for name in sorted(dir(plugin)):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            continue
        hook = options.get("specname") or name
        if hook not in own:
            group = next((k for k, specs in HOOKS_BY_GROUP.items() if hook in hooks_of(specs)), None)
            if group is None:
                raise _Unusable(f"hook '{hook}' does not exist; {did_you_mean(hook, own)}")
            if group not in declared:
                raise _Unusable(f"hook '{hook}' belongs to group {PROJECT}.{group}; declare an entry point for it there")
            continue
        if options["wrapper"] or options["hookwrapper"]:
            raise _Unusable(f"hook '{hook}' is implemented as a wrapper, which would change other plugins' results")
        if unknown := _unknown_arguments(getattr(plugin, name), hook):
            raise _Unusable(
                f"hook '{hook}' takes the argument '{unknown[0]}', which it is not given; "
                f"its arguments: {', '.join(hook_arguments(hook)) or 'none'}"
            )
        hooks.append(hook)
    if not hooks:
        raise _Unusable(_why_empty(plugin, own, info.kind))
    try:
        manager.register(plugin, name=info.name)
    except (pluggy.PluginValidationError, ValueError) as e:
        if manager.has_plugin(info.name):
            manager.unregister(plugin)
        raise _Unusable(" ".join(str(e).split())) from e
    return tuple(h for h in own if h in hooks)


def _why_empty(plugin: Any, own: Sequence[str], kind: str) -> str:
    unmarked = [n for n in own if inspect.isroutine(getattr(plugin, n, None))]
    if unmarked:
        return f"it implements no hook: '{unmarked[0]}' is not decorated with hookimpl"
    return f"it implements no hook of group {PROJECT}.{kind} ({', '.join(own)})"


def _taken(function: Callable[..., Any]) -> tuple[list[str], list[str], bool]:
    """Parameters that have to be given, those with a default, and whether ``**`` takes any."""
    required: list[str] = []
    optional: list[str] = []
    takes_any = False
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            takes_any = True
        elif p.kind is not p.VAR_POSITIONAL:
            (required if p.default is p.empty else optional).append(p.name)
    return required, optional, takes_any


def _unknown_arguments(function: Callable[..., Any], hook: str) -> list[str]:
    given = hook_arguments(hook)
    return [a for a in _taken(function)[0] if a not in given]


def _implementations(manager: pluggy.PluginManager, hook: str, plugins: Mapping[str, PluginInfo]) -> tuple[Implementation, ...]:
    given = hook_arguments(hook)
    out = []
    for impl in sorted(getattr(manager.hook, hook).get_hookimpls(), key=lambda i: str(i.plugin_name)):
        required, optional, takes_any = _taken(impl.function)
        taken = tuple(a for a in given if a in required or a in optional)
        arguments = None if takes_any or taken == given else taken
        out.append(Implementation(plugins[impl.plugin_name], hook, impl.function, arguments, CHECKS[hook]))
    return tuple(out)
