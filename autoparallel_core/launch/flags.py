"""Command-line flags of a program, read with the parser that such programs use themselves (argparse).

An engine lists the flags that it knows what to do with; what is left over is sorted into flags that do not matter,
flags that matter and are not modelled, and flags that nobody knows.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from attrs import field, frozen

from autoparallel_core.errors import SpecError

Kind = Literal["int", "float", "str", "on", "off", "strs"]
_VARIABLE = re.compile(r"\$\{?\w+\}?|\$\(.*\)")


class Unset(str):
    """A value that only a running shell knows, as written."""

    __slots__ = ()


@frozen
class Option:
    """One flag with its spellings. ``on`` and ``off`` are switches (stored true and false), ``strs`` takes several words."""

    names: tuple[str, ...]
    kind: Kind = "int"
    dest: str = ""

    @property
    def key(self) -> str:
        return self.dest or self.names[0].lstrip("-").replace("-", "_")


def dashed(word: str) -> str:
    """A long flag with dashes for underscores; its value, if any, as it stands."""
    name, eq, value = word.partition("=")
    return name.replace("_", "-") + eq + value if name.startswith("--") else word


def options(kind: Kind, *names: str) -> tuple[Option, ...]:
    """One option per word; spellings of one option are joined by ``|``, and ``=dest`` names where it goes."""
    out = []
    for word in names:
        spelled, _, dest = word.partition("=")
        out.append(Option(tuple(spelled.split("|")), kind, dest))
    return tuple(out)


@frozen
class Parsed:
    """Values by destination (only of flags that were given), words that belong to none, and variables without value."""

    values: Mapping[str, Any]
    extra: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    positional: tuple[str, ...] = field(default=())

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or ``default`` when the flag was not given or its value is an unset variable."""
        value = self.values.get(key, default)
        return default if isinstance(value, Unset) else value

    def given(self, key: str) -> bool:
        return key in self.values


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ([^:]+): ", r"\1: ", message)
        raise SpecError(f"{self.prog}: {message}")


def parse(words: Sequence[str], table: Iterable[Option], *, program: str, abbreviations: bool = False) -> Parsed:
    """Read the arguments of one command.

    Args:
        words: the arguments.
        table: the flags to understand; others go to ``extra`` with their values.
        program: what to call the program in messages.
        abbreviations: whether it accepts unambiguous beginnings of its flags.

    Raises:
        SpecError: a value is missing or is no number.
    """
    parser = _Parser(prog=program, add_help=False, allow_abbrev=abbreviations)
    for option in table:
        _declare(parser, option)
    words = [w for w in words if w not in {"\\", "\n"}]
    namespace, extra = parser.parse_known_args(list(words))
    values = vars(namespace)
    numbers = {o.key for o in table if o.kind in {"int", "float"}}
    unset = [str(v) for key, v in values.items() if isinstance(v, Unset) and key in numbers]
    return Parsed(values, tuple(extra), tuple(dict.fromkeys(unset)))


def _declare(parser: argparse.ArgumentParser, option: Option) -> None:
    common: dict[str, Any] = {"dest": option.key, "default": argparse.SUPPRESS}
    if option.kind in {"on", "off"}:
        parser.add_argument(*option.names, action="store_true" if option.kind == "on" else "store_false", **common)
        return
    read = {"int": _int, "float": _float}.get(option.kind, _text)
    parser.add_argument(*option.names, type=read, nargs="*" if option.kind == "strs" else None, **common)


def _int(text: str) -> int | Unset:
    if _VARIABLE.search(text):
        return Unset(text)
    try:
        return int(text.replace("_", "")) if re.fullmatch(r"[+-]?[\d_]+", text) else _scaled(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None


def _scaled(text: str) -> int:
    """``8k`` and ``8K`` as serving engines write token counts; ``1e4``."""
    if m := re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])", text):
        unit = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}[m[2]]
        return int(float(m[1]) * unit)
    value = float(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


def _float(text: str) -> float | Unset:
    if _VARIABLE.search(text):
        return Unset(text)
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None


def _text(text: str) -> str:
    return Unset(text) if _VARIABLE.fullmatch(text) else text


@frozen
class Leftover:
    """Flags that an engine's table did not read."""

    unmodelled: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def sort_leftover(extra: Sequence[str], *, harmless: str, notable: Mapping[str, str]) -> Leftover:
    """Sort what is left over.

    Args:
        extra: words without a place.
        harmless: patterns (separated by blanks, full match, without dashes) of flags that change neither memory nor
            speed nor legality.
        notable: what flags change, in words that follow the flag → their patterns.
    """
    ignored = re.compile("|".join(harmless.split()) or "(?!)")
    effects = {effect: re.compile("|".join(patterns.split())) for effect, patterns in notable.items()}
    unmodelled: list[str] = []
    unknown: list[str] = []
    for word in extra:
        if not word.startswith("-") or re.fullmatch(r"-[\d.]+(e-?\d+)?", word) or word in {"-", "--"}:
            continue
        flag = word.split("=", 1)[0]
        name = flag.lstrip("-").replace("_", "-")
        if ignored.fullmatch(name):
            continue
        effect = next((text for text, pattern in effects.items() if pattern.fullmatch(name)), None)
        if effect is not None:
            unmodelled.append(f"{flag} {effect}")
        else:
            unknown.append(flag)
    return Leftover(tuple(dict.fromkeys(unmodelled)), tuple(dict.fromkeys(unknown)))
