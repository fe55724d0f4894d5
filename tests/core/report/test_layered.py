"""Drawn graphs: edges lead down, boxes of a layer do not overlap and keep their order, lines pass every layer between."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.report.module_plan.layered import GAP, layered


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[int, float], list[tuple[int, int]]]:
    n = draw(st.integers(1, 14))
    widths = {i: draw(st.floats(10, 200)) for i in range(n)}
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] < p[1])
    return widths, draw(st.lists(pairs, max_size=24)) if n > 1 else []


@given(graphs())
def test_layers(graph: tuple[dict[int, float], list[tuple[int, int]]]) -> None:
    widths, edges = graph
    found = layered(widths, edges)
    assert set(found.at) == set(widths)
    for u, v in edges:
        bends = found.bends[u, v]
        assert found.at[u][1] < found.at[v][1]
        assert [k for _, k in bends] == list(range(found.at[u][1] + 1, found.at[v][1]))
    rows: dict[int, list[int]] = {}
    for n, (_, k) in found.at.items():
        rows.setdefault(k, []).append(n)
    for row in rows.values():
        row.sort(key=lambda n: found.at[n][0])
        for a, b in pairwise(row):
            assert found.at[b][0] - found.at[a][0] >= (widths[a] + widths[b]) / 2 + GAP - 1e-6
        assert found.at[row[0]][0] >= widths[row[0]] / 2 - 1e-6
        assert found.at[row[-1]][0] + widths[row[-1]] / 2 <= found.width + 1e-6


def test_a_chain_stands_in_one_column() -> None:
    found = layered({"a": 50.0, "b": 90.0, "c": 20.0}, [("a", "b"), ("b", "c")])
    assert [k for _, k in found.at.values()] == [0, 1, 2]
    assert len({round(x, 6) for x, _ in found.at.values()}) == 1


def test_what_nothing_leads_to_stands_above_its_reader() -> None:
    found = layered({"a": 10.0, "b": 10.0, "weight": 10.0, "c": 10.0}, [("a", "b"), ("b", "c"), ("weight", "c")])
    assert found.at["weight"][1] == found.at["c"][1] - 1
