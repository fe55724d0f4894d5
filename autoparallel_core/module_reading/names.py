"""Names of repeated parts, gathered: ``layers.0.wq.weight`` … ``layers.31.wq.weight`` become ``layers.0…31.wq.weight``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")
_STARRED = re.compile(r"\*'*(?=\.|$)")


def split(name: str) -> tuple[str, tuple[int, ...]]:
    """The pattern with ``*`` for the numbers of modules, and the numbers: those of operators (``mul.1``) stay."""
    module, slash, operator = name.partition("/")
    numbers = tuple(int(m.group()) for m in _NUMBER.finditer(module))
    return _NUMBER.sub("*", module) + slash + operator, numbers


def plain(name: str) -> str:
    """The pattern alone."""
    return split(name)[0]


def labels(names: Iterable[str]) -> list[str]:
    """The names, gathered by pattern, in order of first appearance."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for name in names:
        pattern, numbers = split(name)
        groups.setdefault(pattern, []).append(numbers)
    out = []
    for pattern, found in groups.items():
        out += [_filled(pattern, spans) for spans in _spans(found)]
    return out


def label(names: Iterable[str]) -> str:
    """All names in one text."""
    return ", ".join(labels(names))


def _spans(numbers: Sequence[tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Products of ranges that together hold exactly these numbers."""
    if not numbers or not numbers[0]:
        return [()]
    rest: dict[int, list[tuple[int, ...]]] = {}
    for first, *more in numbers:
        rest.setdefault(first, []).append(tuple(more))
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for first, tails in rest.items():
        alike.setdefault(tuple(sorted(set(tails))), []).append(first)
    return [(ranges(firsts), *tail) for tails, firsts in alike.items() for tail in _spans(tails)]


def ranges(numbers: Iterable[int]) -> str:
    """``0…3,7``: runs of three and more with an ellipsis."""
    out: list[str] = []
    run: list[int] = []
    for n in [*sorted(set(numbers)), None]:
        if run and (n is None or n != run[-1] + 1):
            out += [f"{run[0]}…{run[-1]}"] if len(run) > 2 else [str(x) for x in run]
            run = []
        if n is not None:
            run.append(n)
    return ",".join(out)


def _filled(pattern: str, spans: Sequence[str]) -> str:
    supply = iter(spans)
    module, slash, operator = pattern.partition("/")
    return re.sub(r"(?:^|(?<=\.))\*(?=\.|$)", lambda _: next(supply), module) + slash + operator


@frozen
class Regions:
    """Repeated layers of a plan, whose operators it keeps once, under the first layer's name."""

    of: Mapping[str, Sequence[str]]
    """``layers.*`` → the module names planned as one."""

    def key(self, name: str) -> str:
        """The name with repeated layers' numbers left out: equal for the parts of layers that are planned as one."""
        canonical = {n: pattern for pattern, names in self.of.items() for n in names}
        module, slash, operator = name.partition("/")
        begin = 0
        while begin <= len(module):
            end = module.find(".", begin)
            end = len(module) if end < 0 else end
            pattern = canonical.get(module[:end])
            if pattern is not None:
                module = pattern + module[end:]
                begin = len(pattern) + 1
            else:
                begin = end + 1
        return module + slash + operator

    def label(self, name: str) -> str:
        """The name for all layers that it stands for: ``layers.0…31.wq/mm``."""
        key = self.key(name)
        out, at = "", 0
        for pattern in sorted(self.of, key=len):
            if key == pattern or key.startswith((f"{pattern}.", f"{pattern}/")):
                star = _STARRED.search(pattern, len(pattern.rpartition(".")[0]))
                begin = star.start() if star else len(pattern)
                numbers = [n.rpartition(".")[2] for n in self.of[pattern]]
                out += key[at:begin] + (ranges(map(int, numbers)) if all(map(str.isdigit, numbers)) else ",".join(numbers))
                at = len(pattern)
        return out + key[at:]
