"""Planner plugin: how the operators of ``operators.py`` may be sharded. It imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.spec.module_plan import OperatorRule, Placed

Shapes = Sequence[tuple[int, ...]]


def scan(_shapes: Shapes, _arguments: Sequence[Any]) -> list[Placed]:
    """x [B, S, H] and decay [H] → [B, S, H]: the batch, or the channels; the sequence is one chain. Linear in x."""
    return [(["S(0)"], ["S(0)", "R"]), (["S(2)"], ["S(2)", "S(0)"]), (["P"], ["P", "R"])]


def scan_backward(_shapes: Shapes, _arguments: Sequence[Any]) -> list[Placed]:
    """Gradient and result [B, S, H], decay [H] → gradients of x and decay; each piece of the batch adds to the second."""
    return [(["S(0)", "P"], ["S(0)", "S(0)", "R"]), (["S(2)", "S(0)"], ["S(2)", "S(2)", "S(0)"])]


def elements(shapes: Sequence[tuple[float, ...]]) -> float:
    """One product and one sum per element."""
    batch, length, hidden = shapes[0]
    return 2.0 * batch * length * hidden


@hookimpl
def operator_rules() -> Mapping[str, OperatorRule]:
    """By the names under which torch knows the operators."""
    return {
        "example_scan.scan.default": OperatorRule(scan, flops=elements),
        "example_scan.scan_backward.default": OperatorRule(scan_backward, flops=lambda shapes: 2.0 * elements(shapes)),
    }
