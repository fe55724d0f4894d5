"""Argument parsing whose every complaint is one sentence that names the flag, the value and what is legal."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import near_names


def suggestion(name: str, known: Sequence[str]) -> str:
    """``"; did you mean --x or --y?"`` with the nearest known names, or an empty string when none is near."""
    near = near_names(name, known, limit=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class _Formatter(argparse.HelpFormatter):
    """Help with room for the longest flag, and without repeating the metavar."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises SpecError instead of printing its usage and leaving.

    Abbreviated flags are refused: a later version's flag must not change what a script means.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _Formatter)
        super().__init__(*args, **kwargs)

    def flags(self) -> tuple[str, ...]:
        """Long option strings that this parser knows."""
        return tuple(o for a in self._actions for o in a.option_strings if o.startswith("--"))

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse, with the nearest legal flag in the message about an unknown one."""
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            self._refuse(extra[0])
        return parsed

    def _refuse(self, word: str) -> NoReturn:
        name = word.split("=", 1)[0]
        if not name.startswith("-"):
            raise SpecError(f"unexpected argument '{word}'; '{self.prog} --help' lists the flags")
        hint = suggestion(name, self.flags()) or f"; '{self.prog} --help' lists the flags"
        raise SpecError(f"unknown flag {name}{hint}")

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (?:-\w/)?", "", message)
        message = re.sub(r": expected (one|at least one) argument$", " needs a value", message)
        if m := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message):
            known = [w.strip(" '") for w in m[2].split(",")]
            message = f"unknown word '{m[1]}' behind {self.prog}{suggestion(m[1], known) or '; known: ' + ', '.join(known)}"
        message = re.sub(r": ignored explicit argument '(.*)'$", r" takes no value, but was given '\1'", message)
        raise SpecError(message)
