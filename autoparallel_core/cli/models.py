"""``autoparallel models``: the catalogue, and one model in detail."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.listing import add_show
from autoparallel_core.errors import SpecError


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
        rows, left_out = [], {}
        for name in host.catalogue():
            try:
                rows.append((name, describe(load_model(name, host)), host.provider("catalogue", name).name))
            except SpecError as e:  # a plugin that is left out must not hide the other models
                left_out[name] = str(e)
        if left_out:
            first = next(iter(left_out.values()))
            print(f"autoparallel: warning: not listed: {', '.join(left_out)} ({first})", file=sys.stderr)
        if args.json:
            print_json(report.catalogue_document(rows))
        else:
            report.print_catalogue(rows)
    print_warnings(host)
    return 0
