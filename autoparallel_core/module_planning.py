"""Plan a module as it is, rather than a described model: the public ``plan``, ``apply`` and ``verify``.

A plugin builds, traces and replays (hook ``module_planner``); the core gives it the cluster, and keeps the plan's document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoparallel_core.cluster import build_cluster
from autoparallel_core.errors import PluginConflict, SpecError, UnknownPlugin
from autoparallel_core.spec.module_plan import ModulePlan, ModulePlanner, ModuleRequest, read_module_plan

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.cluster import Cluster
    from autoparallel_core.spec.module_plan import OperatorRule
    from autoparallel_core.spec.module_source import BuiltModule, ModuleSource


def plan(
    module: Any,
    inputs: Sequence[Any] | Mapping[str, Any] = (),
    mesh: str | Mapping[str, int] = "auto",
    *,
    n_gpus: int | None = None,
    gpu: str | None = None,
    cluster: Cluster | None = None,
    pins: Mapping[str, str] | None = None,
    memory_limit_bytes: float | None = None,
    optimizer_bytes: float | None = None,
    time_limit_s: float = 120.0,
    source: ModuleSource | None = None,
    host: Host | None = None,
    **options: Any,
) -> ModulePlan:
    """The placements of least predicted step time for a module on a mesh, and the program that replays them.

    Args:
        module: the module; it may be on the meta device.
        inputs: positional arguments, or keyword arguments as a mapping, of one call. Tensors may be on the meta device.
        mesh: ``"dp=32,tp=8"`` or ``{"dp": 32, "tp": 8}``, outermost dimension first; ``"auto"`` searches the shape.
        n_gpus: GPUs of a searched mesh.
        gpu: name of the target GPU; None takes the default.
        cluster: the target, instead of ``gpu``.
        pins: name pattern → placement, ``{"layers.*.wq": "R S(0)"}``: one word per mesh dimension.
        memory_limit_bytes: per GPU; None takes what the GPU has.
        optimizer_bytes: state per parameter; None takes Adam's.
        time_limit_s: for the search.
        source: how the module was made, for the plan to record.
        host: the plugins.
        options: what else the planner documents.

    Raises:
        SpecError: bad input, or a module that cannot be traced.
        Infeasible: nothing fits in memory.
        UnknownPlugin: no plugin plans modules.
    """
    from autoparallel_core.host import host as default_host

    plugins = host or default_host()
    names, sizes = parse_mesh(mesh)
    if sizes and n_gpus is not None and prod(sizes) != n_gpus:
        raise SpecError(f"mesh {mesh} takes {prod(sizes)} GPUs, not {n_gpus}")
    count = prod(sizes) if sizes else n_gpus
    if cluster is None:
        if count is None:
            raise SpecError("a searched mesh needs the number of GPUs: give n_gpus")
        preset = plugins.gpu(gpu) if gpu is not None else default_gpu(plugins)
        cluster = build_cluster(preset, count)
    elif count is not None and cluster.n_gpus != count:
        raise SpecError(f"the mesh takes {count} GPUs and the cluster has {cluster.n_gpus}")
    if cluster.kinds:
        raise SpecError("modules are planned on GPUs of one kind, and the cluster has several")
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (_positional(inputs), {})
    request = ModuleRequest(
        cluster=cluster,
        mesh_names=names,
        mesh_sizes=sizes,
        pins=dict(pins or {}),
        memory_limit_bytes=memory_limit_bytes,
        optimizer_bytes=optimizer_bytes,
        time_limit_s=time_limit_s,
        options=with_operator_rules(options, plugins),
    )
    made = planner_of(plugins).plan(module, args, kwargs, request)
    return ModulePlan({**made.document, "source": None if source is None else source.document()})


def build_module(source: ModuleSource, *, host: Host | None = None) -> BuiltModule:
    """The module that a source describes, and the arguments of one call, without their data.

    Raises:
        SpecError: a function cannot be imported or fails, or no class is known for the configuration.
    """
    from autoparallel_core.host import host as default_host

    return planner_of(host or default_host()).build(source)


def verify(
    plan: ModulePlan | Path | str,
    module: Any = None,
    inputs: Any = None,
    *,
    source: ModuleSource | None = None,
    host: Host | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """Replay a plan on the CPU, on a reduced copy of the module, and compare with the unsharded module.

    Args:
        plan: the plan, or its file.
        module: the module or a smaller one of the same structure, with ``inputs``; None builds it as the plan records.
        inputs: arguments of one call, a mapping or a sequence.
        source: how to build the module, instead of what the plan records.
        host: the plugins.
        options: what else the planner documents: ``processes``, ``seed``, ``reduce``.

    Returns:
        Figures by name; ``passed`` says whether they agree.

    Raises:
        SpecError: there is no module to verify on, or it is another one than was planned.
    """
    from autoparallel_core.host import host as default_host

    found = plan if isinstance(plan, ModulePlan) else read_module_plan(plan)
    given = {"module": module, "inputs": inputs} if module is not None else {"source": source}
    plugins = host or default_host()
    return planner_of(plugins).verify(found, {**given, **with_operator_rules(options, plugins)})


def apply(module: Any, plan: ModulePlan | Path | str, mesh: Any = None, *, host: Host | None = None, **options: Any) -> Any:
    """The module, its parameters placed and its forward and backward running as planned. Nothing is searched or traced.

    Args:
        module: an instance of what was planned; changed in place.
        plan: the plan, or its file.
        mesh: the device mesh to run on; None makes one of the plan's shape from the initialised process group.
        host: the plugins.
        options: what else the planner documents.

    Raises:
        SpecError: the plan cannot be read, or is of another module: the first difference is named.
    """
    from autoparallel_core.host import host as default_host

    found = plan if isinstance(plan, ModulePlan) else read_module_plan(plan)
    return planner_of(host or default_host()).apply(module, found, {"mesh": mesh, **options})


def with_operator_rules(options: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """The options with the plugins' ``rules`` and ``flops`` by operator; those that the caller gives come first.

    Raises:
        PluginConflict: two plugins have a rule for one operator.
    """
    found: dict[str, tuple[Any, OperatorRule]] = {}
    for info, given in host.operator_rules():
        for name, rule in given.items():
            if name in found:
                raise PluginConflict(f"operator {name} has a rule of both {found[name][0]} and {info}")
            found[name] = (info, rule)
    rules = {name: rule.placements for name, (_, rule) in found.items()}
    flops = {name: rule.flops for name, (_, rule) in found.items() if rule.flops is not None}
    return {**options, "rules": {**rules, **options.get("rules", {})}, "flops": {**flops, **options.get("flops", {})}}


def planner_of(host: Host) -> ModulePlanner:
    """The plugin that plans modules. Raises UnknownPlugin when none is installed."""
    found = host.module_planner()
    if found is None:
        raise UnknownPlugin("no installed plugin plans modules; 'autoparallel plugins' lists those that were found")
    return found


def parse_mesh(mesh: str | Mapping[str, int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and sizes of ``dp=32,tp=8``, outermost first; none for ``auto``. Raises SpecError when it cannot be read."""
    if isinstance(mesh, Mapping):
        mesh = ",".join(f"{k}={v}" for k, v in mesh.items())
    if mesh.strip() == "auto":
        return (), ()
    names, sizes = [], []
    for part in mesh.split(","):
        name, eq, value = part.strip().partition("=")
        if not eq or not name.isidentifier() or not value.isdigit() or int(value) < 1:
            raise SpecError(f"mesh '{mesh}': '{part.strip()}' is not NAME=SIZE; write it like dp=32,tp=8, or auto")
        if name in names:
            raise SpecError(f"mesh '{mesh}' has two dimensions named {name}")
        names.append(name)
        sizes.append(int(value))
    return tuple(names), tuple(sizes)


def _positional(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def default_gpu(host: Host) -> Any:
    """The preset that is planned for when none is named. Raises SpecError when no or several plugins claim it."""
    defaults = [g for g in host.gpus().values() if g.default]
    if len(defaults) != 1:
        raise SpecError("no GPU is named and the installed plugins give no single default; name one")
    return defaults[0]
