"""``autoparallel models``: the catalogue, and one model in detail."""

from __future__ import annotations

import argparse
from typing import Any

from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.listing import add_show


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "models", description="List the models known by name, or show one: a name, a config.json or its directory."
    )
    add_show(p, "MODEL")


def run(args: argparse.Namespace) -> int:
    from autoparallel_core.models import describe, load_model
    from autoparallel_core.report import models as report
    from autoparallel_core.report.inventory import print_json

    host = host_of(args)
    if args.show:
        description = describe(load_model(args.show, host))
        if args.json:
            print_json(report.model_document(description))
        else:
            report.print_model(description)
    else:
        rows = [(name, describe(load_model(name, host)), host.provider("catalogue", name).name) for name in host.catalogue()]
        if args.json:
            print_json(report.catalogue_document(rows))
        else:
            report.print_catalogue(rows)
    print_warnings(host)
    return 0
