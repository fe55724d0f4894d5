"""Whatever the width, every figure is printed whole and no line is wider than the console (unless one word is)."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from autoparallel_core.report.console import bullets, labelled, put
from autoparallel_core.report.layout import Column, print_bands, print_records

WORDS = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=9)
CELLS = st.text("0123456789.,µ×", min_size=1, max_size=9)


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 4))
    titles = draw(st.lists(WORDS, min_size=2, max_size=9, unique=True))
    return [
        Column(
            title,
            draw(st.lists(CELLS, min_size=rows, max_size=rows)),
            right=draw(st.booleans()),
            main=draw(st.booleans()) or i == 0,
            starts=draw(st.booleans()),
        )
        for i, title in enumerate(titles)
    ]


def printed(function, columns, width) -> str:
    out = io.StringIO()
    function(Console(file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False), columns)
    return out.getvalue()


@given(tables(), st.integers(24, 160))
@pytest.mark.parametrize("function", [print_bands, print_records])
def test_every_figure_and_title_survives_any_width(function, columns, width):
    text = printed(function, columns, width)
    words = text.split()
    for column in columns:
        assert any(column.title in w for w in words)
        for cell in column.cells:
            assert cell in words
    assert "…" not in text
    assert max(cell_len(line) for line in text.splitlines()) <= width


def columns(n: int, width: int = 6, starts: tuple[int, ...] = ()) -> list[Column]:
    return [Column("#", ["1"])] + [Column(f"c{i}".ljust(width, "x"), [str(i)], starts=i in starts) for i in range(n)]


def test_one_band_when_it_fits():
    assert len(printed(print_bands, columns(9), 80).splitlines()) == 2


def test_bands_repeat_the_key_and_are_as_few_as_possible():
    text = printed(print_bands, columns(9), 40)  # 1 + 9·8 = 73 cells: two bands of 4 and 5 would need 41 for the second
    heads = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    assert len(heads) == 3
    assert sum(line.count("x") > 0 for line in text.splitlines()) == 3


def test_a_band_begins_where_a_column_asks_for_it_if_that_costs_no_band():
    text = printed(print_bands, columns(8, starts=(3,)), 45)
    heads = [line.split() for line in text.splitlines() if line.lstrip().startswith("#")]
    assert [len(h) - 1 for h in heads] == [3, 5]


def test_a_single_line_when_nothing_fits_beside_the_key():
    long = "tp8 pp4 dp2 vpp5 cp2 ep16 zero1 mbs1 recompute=full:12 offload=optimizer"
    text = printed(print_bands, [Column("#", ["1"]), Column("strategy", [long], words="{}"), Column("s", ["2"])], 40)
    assert all(word in text.split() for word in long.split())
    assert max(map(len, text.splitlines())) <= 40


def test_verdicts_are_coloured_on_a_terminal_only():
    column = [Column("#", ["1", "2"]), Column("verdict", ["fits", "does not fit"], right=False)]
    out = io.StringIO()
    print_bands(Console(file=out, width=80, force_terminal=True, color_system="standard"), column)
    assert "\x1b[32mfits" in out.getvalue()
    assert "\x1b[31mdoes not fit" in out.getvalue()
    assert "\x1b" not in printed(print_bands, column, 80)


@given(st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=300), st.integers(20, 100), st.integers(0, 6))
def test_paragraphs_keep_their_words(text, width, indent):
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    put(console, text, indent=indent)
    assert "".join(out.getvalue().split()) == "".join(text.split())


def test_labels_and_bullets_hang(console_at):
    console, out = console_at(30)
    labelled(console, [("Model", "one two three four five six seven"), ("Cluster", "x")])
    bullets(console, ["alpha beta gamma delta epsilon zeta"], indent=2)
    assert out.getvalue().splitlines() == [
        "Model    one two three four",
        "         five six seven",
        "Cluster  x",
        "  - alpha beta gamma delta",
        "    epsilon zeta",
    ]
