"""``autoparallel gpus``: the presets, and the sources of one."""

from __future__ import annotations

import argparse
from typing import Any

from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.listing import add_show


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser("gpus", description="List the GPU presets, or show one with the source of each figure.")
    add_show(p, "GPU")


def run(args: argparse.Namespace) -> int:
    from autoparallel_core.report import inventory

    host = host_of(args)
    if args.show:
        gpu = host.gpu(args.show)
        plugin = host.provider("gpus", gpu.name).name
        if args.json:
            inventory.print_json(inventory.gpu_document(gpu, plugin))
        else:
            inventory.print_gpu(gpu, plugin)
    elif args.json:
        inventory.print_json(inventory.gpus_document(host.gpus()))
    else:
        inventory.print_gpus(host.gpus())
    print_warnings(host)
    return 0
