"""``autoparallel engines``: the software that can run a strategy, and one engine in detail."""

from __future__ import annotations

import argparse
from typing import Any

from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.listing import add_show
from autoparallel_core.errors import UnknownPlugin
from autoparallel_core.naming import did_you_mean


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser("engines", description="List the engines: modes, default version, what they do; or show one.")
    add_show(p, "ENGINE")


def run(args: argparse.Namespace) -> int:
    from autoparallel_core.report import inventory, show

    host = host_of(args)
    engines = host.engines()
    providers = {name: host.provider("engines", name).name for name in engines}
    if args.show:
        engine = engines.get(args.show.strip().casefold())
        if engine is None:
            raise UnknownPlugin(f"unknown engine '{args.show}'; {did_you_mean(args.show, engines)}")
        if args.json:
            inventory.print_json(show.engine_show_document(engine, providers[engine.name]))
        else:
            show.print_engine(engine, providers[engine.name])
    elif args.json:
        inventory.print_json(inventory.engines_document(engines, providers))
    else:
        inventory.print_engines(engines, providers)
    print_warnings(host)
    return 0
