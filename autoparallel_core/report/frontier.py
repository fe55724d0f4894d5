"""The frontier of speed for one user against throughput: a table and a plot in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attrs import asdict
from rich.console import Console

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import heading, put
from autoparallel_core.report.layout import Column, print_bands
from autoparallel_core.report.serving import per_user
from autoparallel_core.search.frontier import Frontier, LoadPoint
from autoparallel_core.search.price import price_per_million_tokens
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_HEIGHT = 12


def print_frontier(console: Console, problem: Problem, found: Frontier) -> None:
    """Every point of the frontier as a row, and where it lies."""
    heading(console, "Pareto frontier: no deployment at any load gives more of both tokens/s per user and tokens/s per GPU")
    if not found.points:
        put(console, "No deployment keeps the limits at any load.")
        return
    print_bands(console, point_columns(problem, found.points))
    console.print()
    for line in plot(found.points, width=min(console.width, 110) - 12):
        console.print(line, soft_wrap=True, highlight=False)
    layouts = dict(zip(names_of(found.points), (notation(p.strategy) for p in found.points), strict=True))
    put(console, " · ".join(f"{letter} {words}" for letter, words in layouts.items()))


def point_columns(problem: Problem, points: Sequence[LoadPoint]) -> list[Column]:
    """Table of points; the letter is that of the plot."""
    names = names_of(points)
    price = problem.inference.gpu_hour_price
    columns = [
        Column("", names),
        Column("tok/s\n/user", [per_user(p.tpot_s) for p in points]),
        Column("output\ntok/s/GPU", [fmt.significant(p.output_tokens_per_s_per_gpu, 4) for p in points]),
        Column("requests\nin flight", [f"{p.concurrency:,}" for p in points]),
        Column("TTFT", [fmt.seconds(p.ttft_s) for p in points]),
        Column("TPOT", [fmt.seconds(p.tpot_s) for p in points]),
        Column("requests\n/s", [fmt.significant(p.requests_per_s) for p in points]),
    ]
    if price is not None:
        cells = [fmt.significant(price_per_million_tokens(p.output_tokens_per_s, p.gpus, price)) for p in points]
        columns.append(Column("price per 1M\noutput tokens", cells))
    return columns


def notation(strategy: Strategy) -> str:
    """The strategy in compact notation; a deployment has no micro-batch."""
    return str(strategy).replace(" mbs1", "")


def names_of(points: Sequence[LoadPoint]) -> list[str]:
    """One letter per layout, in the order in which they appear."""
    seen: dict[str, str] = {}
    return [seen.setdefault(str(p.strategy), _LETTERS[len(seen) % len(_LETTERS)]) for p in points]


def plot(points: Sequence[LoadPoint], *, width: int = 60, height: int = _HEIGHT) -> list[str]:
    """Tokens per second per GPU upwards, per user to the right, both logarithmic; the letters are the layouts'."""
    xs, ys = [p.tokens_per_s_per_user for p in points], [p.output_tokens_per_s_per_gpu for p in points]
    if len(points) < 2 or not all(map(math.isfinite, xs)):
        return []
    rows = [[" "] * width for _ in range(height)]
    for x, y, name in zip(xs, ys, names_of(points), strict=True):
        rows[_cell(y, ys, height)][_cell(x, xs, width)] = name
    top, bottom = fmt.significant(max(ys)), fmt.significant(min(ys))
    left = max(len(top), len(bottom))
    labels = {height - 1: top, 0: bottom}
    lines = ["output tok/s/GPU"]
    lines += [f"{labels.get(y, ''):>{left}} |{''.join(rows[y]).rstrip()}" for y in reversed(range(height))]
    low, high = fmt.significant(min(xs)), f"{fmt.significant(max(xs))} tok/s/user"
    return [*lines, f"{'':>{left}} +{'-' * width}", f"{'':>{left}}  {low:<{width - len(high)}}{high}"]


def _cell(v: float, values: Sequence[float], cells: int) -> int:
    """Position on a logarithmic axis from the smallest to the largest of ``values``."""
    low, high = math.log(min(values)), math.log(max(values))
    return round((math.log(v) - low) / max(high - low, 1e-9) * (cells - 1))


def point_document(point: LoadPoint, gpu_hour_price: float | None) -> dict[str, Any]:
    plain = asdict(point, recurse=False) | {"strategy": notation(point.strategy)}
    price = None
    if gpu_hour_price is not None:
        price = price_per_million_tokens(point.output_tokens_per_s, point.gpus, gpu_hour_price)
    speed = point.tokens_per_s_per_user
    return plain | {
        "tokens_per_s_per_user": speed if math.isfinite(speed) else None,
        "price_per_million_output_tokens": price,
    }


def frontier_document(problem: Problem, found: Frontier) -> dict[str, Any]:
    price = problem.inference.gpu_hour_price
    return {
        "points": [point_document(p, price) for p in found.points],
        "goodput": point_document(found.goodput, price) if found.goodput else None,
        "evaluated": found.evaluated,
    }
