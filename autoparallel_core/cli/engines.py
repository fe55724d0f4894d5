"""``autoparallel engines``: the software that can run a strategy."""

from __future__ import annotations

import argparse
from typing import Any

from autoparallel_core.cli.hosting import host_of, print_warnings


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser("engines", description="List the engines: modes, default version, what they do.")
    p.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    from autoparallel_core.report import inventory

    host = host_of(args)
    providers = {name: host.provider("engines", name).name for name in host.engines()}
    if args.json:
        inventory.print_json(inventory.engines_document(host.engines(), providers))
    else:
        inventory.print_engines(host.engines(), providers)
    print_warnings(host)
    return 0
