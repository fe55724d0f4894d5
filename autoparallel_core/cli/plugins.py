"""``autoparallel plugins``: what was found, and whether it works."""

from __future__ import annotations

import argparse
from typing import Any

from autoparallel_core.cli.hosting import host_of, print_warnings


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser("plugins", description="List the plugins found: name, kind, version, distribution, hooks, status.")
    p.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    from autoparallel_core.report import inventory

    host = host_of(args)
    if args.json:
        inventory.print_json(inventory.plugins_document(host.plugins()))
    else:
        inventory.print_plugins(host.plugins())
    print_warnings(host)
    return 0
