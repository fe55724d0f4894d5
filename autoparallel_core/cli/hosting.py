"""The plugin host as the command line asks for it."""

from __future__ import annotations

import argparse
import sys

from autoparallel_core.host import Host, host

_untold: list[Host] = []
"""Hosts in use whose warnings have not been printed."""


def host_of(args: argparse.Namespace) -> Host:
    """The process-wide host, or one without the plugins that ``--no-plugin`` names."""
    disabled = getattr(args, "no_plugin", None)
    plugins = Host(disabled=tuple(disabled)) if disabled else host()
    _untold[:] = [plugins]
    return plugins


def print_untold_warnings() -> None:
    """On the way out of a failed command: a plugin that was left out may be the reason."""
    for plugins in tuple(_untold):
        print_warnings(plugins)


def print_warnings(plugins: Host) -> None:
    """What the host left out, one line each on standard error."""
    _untold[:] = [p for p in _untold if p is not plugins]
    for sentence in plugins.warnings:
        print(f"autoparallel: warning: {' '.join(sentence.split())}", file=sys.stderr)
