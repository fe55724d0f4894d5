"""Pictures of the page, as SVG text: graphs, stacked bars, memory over time. Colours are classes of the page's style."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from html import escape

from autoparallel_core.report import format as fmt
from autoparallel_core.report.module_plan.graph import Drawing, Edge, Node
from autoparallel_core.report.module_plan.layered import layered

_BOX, _ROW, _TOP = 38.0, 78.0, 8.0
_LETTER = 6.3
_WIDEST = 30
"""Letters of a title that a box shows."""


def graph(drawing: Drawing, colours: Mapping[str, int]) -> str:
    """A drawing with its nodes in layers; ``colours`` maps placements to the numbers of their colours."""
    widths: dict[Hashable, float] = {key: _width(n) for key, n in drawing.nodes.items()}
    found = layered(widths, list(drawing.edges))
    height = found.layers * _ROW + 2 * _TOP
    parts = [f'<svg class="graph" viewBox="0 0 {found.width:.0f} {height:.0f}" width="{found.width:.0f}" height="{height:.0f}">']
    lines = [_line(pair, [found.at[pair[0]], *found.bends[pair], found.at[pair[1]]], e) for pair, e in drawing.edges.items()]
    parts += [path for path, _ in lines] + [label for _, label in lines]
    parts += [_box(key, n, found.at[key], widths[key], colours) for key, n in drawing.nodes.items()]
    return "".join([*parts, "</svg>"])


def _width(n: Node) -> float:
    letters = max(min(len(n.title), _WIDEST), len(_second(n)))
    return max(letters * _LETTER + 16.0, 70.0)


def _second(n: Node) -> str:
    if n.kind != "operator":
        return f"{n.sub} {n.placement}".strip()
    return f"{n.placement}  {fmt.seconds(n.seconds)}" if n.seconds else n.placement


def _shown(title: str) -> str:
    return title if len(title) <= _WIDEST else f"…{title[1 - _WIDEST :]}"


def _box(key: str, n: Node, at: tuple[float, int], width: float, colours: Mapping[str, int]) -> str:
    x, y = at[0] - width / 2, _TOP + at[1] * _ROW
    colour = f"c{colours[n.placement]}" if n.placement in colours else "c9"
    again = " again" if n.again else ""
    slot = "" if n.slot is None else f' data-slot="{n.slot}" tabindex="0" role="button"'
    rx = {"parameter": 14, "hub": 19}.get(n.kind, 4)
    return (
        f'<g class="node {n.kind}{again} {colour}" data-key="{escape(key, quote=True)}"{slot}>'
        f"<title>{escape(f'{n.title}: {n.sub}, {n.placement}')}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BOX:.0f}" rx="{rx}"/>'
        f'<text x="{at[0]:.1f}" y="{y + 16:.1f}">{escape(_shown(n.title))}</text>'
        f'<text class="second" x="{at[0]:.1f}" y="{y + 31:.1f}">{escape(_second(n))}</text></g>'
    )


def _line(pair: tuple[str, str], points: Sequence[tuple[float, int]], edge: Edge) -> tuple[str, str]:
    """The path, and its label where it moves data."""
    last = len(points) - 1
    xs = [p[0] for p in points]
    tops = [_TOP + p[1] * _ROW for p in points]
    path = f"M{xs[0]:.1f},{tops[0] + _BOX:.1f}"
    for i in range(1, last + 1):
        y0 = tops[i - 1] + _BOX
        path += f" C{xs[i - 1]:.1f},{y0 + 20:.1f} {xs[i]:.1f},{tops[i] - 20:.1f} {xs[i]:.1f},{tops[i]:.1f}"
        if i < last:
            path += f" L{xs[i]:.1f},{tops[i] + _BOX:.1f}"
    what = edge.given if edge.given == edge.taken else f"{edge.given} → {edge.taken}"
    ends = f'data-from="{escape(pair[0], quote=True)}" data-to="{escape(pair[1], quote=True)}"'
    if not edge.moves:
        return f'<path class="edge" {ends} d="{path}"><title>{escape(what)}</title></path>', ""
    label = f"{what}  {fmt.seconds(edge.seconds)}"
    x, y = (xs[last - 1] + xs[last]) / 2, tops[last] - 16
    return (
        f'<path class="edge moves" {ends} d="{path}"><title>{escape(label)}</title></path>',
        f'<text class="edge-label" x="{x:.1f}" y="{y:.1f}">{escape(label)}</text>',
    )


def stack(parts: Sequence[tuple[str, float, str]], whole: float) -> str:
    """One bar of named parts: (name, amount, amount in words)."""
    x, out = 0.0, []
    scale = 1000.0 / whole if whole > 0 else 0.0
    for i, (name, amount, said) in enumerate(parts):
        width = amount * scale
        title = f"<title>{escape(f'{name}: {said}')}</title>"
        out.append(f'<rect class="f{i % 8}" x="{x:.2f}" y="0" width="{width:.2f}" height="26">{title}</rect>')
        x += width
    return f'<svg class="stack" viewBox="0 0 1000 26" preserveAspectRatio="none" role="img">{"".join(out)}</svg>'


def area(at: Sequence[int], causes: Mapping[str, Sequence[float]], limit: float, peak: tuple[int, float], forward: int) -> str:
    """Stacked areas over the steps of the program, the limit, the highest point, and where the backward begins."""
    if len(at) < 2:
        return ""
    width, height, left, low = 1000.0, 260.0, 64.0, 24.0
    top = max(peak[1], *(sum(c[i] for c in causes.values()) for i in range(len(at)))) * 1.12
    top = limit * 1.06 if limit <= 2.5 * top else top
    first, span = at[0], at[-1] - at[0]

    def px(i: float) -> float:
        return left + (i - first) / span * (width - left - 10)

    def py(v: float) -> float:
        return height - low - v / top * (height - low - 8)

    out = [f'<svg class="area" viewBox="0 0 {width:.0f} {height:.0f}" role="img">']
    base = [0.0] * len(at)
    for k, (cause, values) in enumerate(causes.items()):
        upper = [b + v for b, v in zip(base, values, strict=True)]
        points = [f"{px(i):.1f},{py(v):.1f}" for i, v in zip(at, upper, strict=True)]
        points += [f"{px(i):.1f},{py(v):.1f}" for i, v in zip(reversed(at), reversed(base), strict=True)]
        out.append(f'<polygon class="f{k % 8}" points="{" ".join(points)}"><title>{escape(cause)}</title></polygon>')
        base = upper
    for tick in _ticks(top):
        y = py(tick)
        out.append(f'<line class="grid" x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}">{escape(fmt.memory(tick))}</text>')
    if limit <= top:
        y = py(limit)
        out.append(f'<line class="limit" x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="limit-label" x="{width - 14}" y="{y - 4:.1f}">limit {escape(fmt.memory(limit))}</text>')
    if first < forward < at[-1]:
        x = px(forward)
        out.append(f'<line class="phase" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{height - low}"/>')
        out.append(f'<text class="phase-label" x="{x - 6:.1f}" y="{height - 7}">forward</text>')
        out.append(f'<text class="phase-label after" x="{x + 6:.1f}" y="{height - 7}">backward</text>')
    out.append(f'<circle class="peak" cx="{px(peak[0]):.1f}" cy="{py(peak[1]):.1f}" r="4"><title>highest</title></circle>')
    out.append("</svg>")
    return "".join(out)


def _ticks(top: float) -> list[float]:
    """Three to six round numbers below ``top``."""
    unit = 10.0 ** (len(f"{top:.0f}") - 1)
    step = next(s for s in (unit * 2, unit, unit / 2, unit / 5) if top / s >= 3)
    return [i * step for i in range(1, int(top / step) + 1)]
