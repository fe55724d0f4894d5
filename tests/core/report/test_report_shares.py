"""Columns of memory: small causes folded, every printed row summing to its printed total."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoparallel_core.report.shares import folded, memory_cells

CAUSES = ("weights", "activations", "logits", "context", "allocator_slack", "padding")
ROWS = st.lists(
    st.dictionaries(st.sampled_from(CAUSES), st.floats(0, 90e9), min_size=1), min_size=1, max_size=6
)  # fmt: skip


@example([{"weights": 950000000.0}])
@given(ROWS)
def test_printed_rows_sum_to_their_printed_total(rows):
    totals = [sum(row.values()) for row in rows]
    causes, cells = memory_cells(rows, totals)
    for row, line, total in zip(rows, cells, totals, strict=True):
        figures = [float(cell.replace(",", "").replace("−", "-")) for cell in line]
        if figures:
            assert sum(figures) == pytest.approx(float(f"{total / 1e9:.1f}"), abs=1e-6)
        for cause, figure in zip(causes, figures, strict=True):  # rounding moves no figure by more than its row's causes
            assert figure == pytest.approx(row.get(cause, 0.0) / 1e9, abs=0.05 * (len(causes) + 3)) or cause == "other"


def test_what_is_small_in_every_row_is_one_column():
    causes, cells = memory_cells(
        [{"weights": 10e9, "padding": 9.4e6, "tables": 0.045e9}, {"weights": 12e9, "tables": 0.02e9, "logits": 0.06e9}],
        [10.0544e9, 12.08e9],
    )
    assert causes == ["weights", "logits", "other"]
    assert cells == [["10.0", "0.0", "0.1"], ["12.0", "0.1", "0.0"]]


def test_what_the_causes_leave_of_the_total_is_said():
    causes, rows = memory_cells([{"weights": 10e9}], [12.5e9])
    assert (causes, rows) == (["weights", "other"], [["10.0", "2.5"]])


def test_overhead_follows_the_causes():
    causes, _ = folded([{"weights": 1e9, "context": 2e9, "allocator_slack": 1e9}, {"weights": 1e9, "logits": 3e9}])
    assert causes == ["weights", "logits", "context", "allocator_slack"]


def test_rounding_goes_where_nobody_knows_better():
    _, cells = memory_cells([{"weights": 1.04e9, "logits": 1.04e9, "allocator_slack": 1.04e9}], [3.12e9])
    assert cells == [["1.0", "1.0", "1.1"]]
