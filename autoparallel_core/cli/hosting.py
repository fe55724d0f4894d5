"""The plugin host as the command line asks for it."""

from __future__ import annotations

import argparse
import sys

from autoparallel_core.host import Host, host


def host_of(args: argparse.Namespace) -> Host:
    """The process-wide host, or one without the plugins that ``--no-plugin`` names."""
    disabled = getattr(args, "no_plugin", None)
    return Host(disabled=tuple(disabled)) if disabled else host()


def print_warnings(plugins: Host) -> None:
    """What the host left out, one line each on standard error."""
    for sentence in plugins.warnings:
        print(f"autoparallel: warning: {' '.join(sentence.split())}", file=sys.stderr)
