"""``autoparallel plugins``: what was found, and whether it works; and one plugin in detail."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.listing import add_show
from autoparallel_core.errors import UnknownPlugin
from autoparallel_core.naming import did_you_mean

if TYPE_CHECKING:
    from autoparallel_core.host import Host, PluginInfo

_REGISTRIES: dict[str, Literal["gpus", "engines", "catalogue", "planners"]] = {
    "hardware": "gpus", "engines": "engines", "models": "catalogue", "planners": "planners",
}  # fmt: skip


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "plugins", description="List the plugins found: name, kind, version, distribution, hooks, status; or show one."
    )
    add_show(p, "PLUGIN")


def run(args: argparse.Namespace) -> int:
    from autoparallel_core.report import inventory, show

    host = host_of(args)
    plugins = host.plugins()
    if args.show:
        found = [p for p in plugins if p.name.casefold() == args.show.strip().casefold()]
        if not found:
            raise UnknownPlugin(f"unknown plugin '{args.show}'; {did_you_mean(args.show, [p.name for p in plugins])}")
        provides = {p.kind: _provided(host, p) for p in found}
        if args.json:
            inventory.print_json(show.plugin_show_document(found, provides))
        else:
            show.print_plugin(found, provides)
    elif args.json:
        inventory.print_json(inventory.plugins_document(plugins))
    else:
        inventory.print_plugins(plugins)
    print_warnings(host)
    return 0


def _provided(host: Host, plugin: PluginInfo) -> list[str]:
    """Names that a plugin registers: GPUs, engines, models of the catalogue, planners."""
    registry = _REGISTRIES.get(plugin.kind)
    if registry is None or plugin.status != "loaded":
        return []
    registered: dict[str, Callable[[], Mapping[str, Any]]] = {
        "gpus": host.gpus, "engines": host.engines, "catalogue": host.catalogue, "planners": host.planners,
    }  # fmt: skip
    return [name for name in registered[registry]() if host.provider(registry, name).name == plugin.name]
