"""Whole-number arithmetic as shells do it: ``$((A * B / C))``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: int(a / b) if abs(a) < 1 << 52 else a // b,
    ast.Mod: lambda a, b: a - b * int(a / b),
    ast.LShift: lambda a, b: a << min(b, 64),
    ast.RShift: lambda a, b: a >> min(b, 64),
}


def calculate(text: str, lookup: Callable[[str], str | None]) -> int | None:
    """The value of an expression over whole numbers and variables; None when it has none.

    Args:
        text: the inside of ``$((…))``.
        lookup: value of a variable, None when it has none.
    """
    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", text).replace("//", "/").replace("/", "//").strip()
    try:
        return _value(ast.parse(plain, mode="eval").body, lookup)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None


def _value(node: ast.expr, lookup: Callable[[str], str | None]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        stated = lookup(node.id)
        if stated is None:
            raise ValueError(node.id)
        return int(stated)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, lookup), _value(node.right, lookup))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, lookup)
    raise ValueError(ast.dump(node))
