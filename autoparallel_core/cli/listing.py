"""What the listing commands share: ``NAME``, ``NAME show X`` and ``--json``."""

from __future__ import annotations

import argparse

from autoparallel_core.errors import SpecError


class _Show(argparse.Action):
    """Reads the optional words ``show X`` into ``args.show``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002  argparse's signature
    ) -> None:
        words = list(values) if isinstance(values, list) else []
        if not words:
            return
        if words[0] != "show":
            raise SpecError(f"unknown argument '{words[0]}'; write '{parser.prog} show {words[0]}' or '{parser.prog}'")
        if len(words) != 2:
            raise SpecError(f"'{parser.prog} show' takes exactly one {self.metavar}, not {len(words) - 1}")
        namespace.show = words[1]


def add_show(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare ``[show X]`` and ``--json``; the name lands in ``args.show`` (None for the list)."""
    parser.usage = f"%(prog)s [show {what}] [--json]"
    parser.add_argument(
        "words", nargs="*", action=_Show, metavar=what, help=f"'show {what}' for one in detail; nothing for the list"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(show=None)
