"""The subcommands: one module each, imported only when asked for.

To add one: write ``autoparallel_core/cli/<name>.py`` with ``add_parser(subparsers)``, which declares its
flags, and ``run(args) -> int``, which returns the exit code; then add its line here.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from attrs import frozen


@frozen
class Command:
    """A subcommand: its name, the module behind it and the line that ``--help`` shows."""

    name: str
    module: str
    summary: str

    def load(self) -> ModuleType:
        return import_module(self.module)


_ROOM = "autoparallel_core.cli"

ADVISE = Command("", f"{_ROOM}.advise", "rank the strategies for a model on a cluster")
COMMANDS: dict[str, Command] = {
    c.name: c
    for c in (
        Command("explain", f"{_ROOM}.explain", "where one strategy's time and memory go, and what would help most"),
        Command("check", f"{_ROOM}.check", "whether a launch script or a strategy is legal and fits, before it runs"),
        Command("export", f"{_ROOM}.export", "write the launch files of a strategy"),
        Command(
            "plan", f"{_ROOM}.plan", "place a module's parameters and operators on a device mesh; show, compare, verify plans"
        ),
        Command("validate", f"{_ROOM}.validate", "predict measured runs and compare"),
        Command("calibrate", f"{_ROOM}.calibrate", "learn from your own measured runs how far predictions are off"),
        Command("profile", f"{_ROOM}.profile", "measure this machine or cluster, or import measurements"),
        Command("models", f"{_ROOM}.models", "list the models known by name, or show one"),
        Command("gpus", f"{_ROOM}.gpus", "list the GPU presets, or show one with its sources"),
        Command("engines", f"{_ROOM}.engines", "list the training and serving engines"),
        Command("plugins", f"{_ROOM}.plugins", "list the plugins found, with their hooks and status"),
    )
}
