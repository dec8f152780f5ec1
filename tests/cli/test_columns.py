"""Columns of text, fitted to a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from harness.cli.terminal.columns import lay_out, middle_cut

_NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=60).map("n{}".format)


def test_names_are_cut_in_the_middle_and_numbers_stay_whole() -> None:
    """A table that is too wide keeps the two ends of a name, and every digit of a number."""
    rows = [("stage1.block2.conv3.weight.quantised", "1,234.5", "[0.3031, 0.3036]", "9.923e-10")]
    lines = lay_out(("layer", "latency µs", "95 % interval", "a"), rows, 1, width=50)
    assert lines[-1].endswith("1,234.5  [0.3031, 0.3036]  9.923e-10")
    assert lines[-1].startswith("stage1") and "…" in lines[-1]
    assert all(len(line) <= 50 for line in lines)


def test_sentences_fold_at_words() -> None:
    """A cell of several words keeps all of them."""
    rows = [("cpu01", "the golden probe was outside its band in the last night")]
    lines = lay_out(("device", "why"), rows, 2, width=30)
    assert " ".join(" ".join(lines[1:]).split()) == "cpu01 the golden probe was outside its band in the last night"
    assert all(len(line) <= 30 for line in lines)


def test_heads_are_stacked_above_narrow_columns() -> None:
    """A head that is wider than its numbers takes several lines before any name is cut."""
    rows = [("resnet50", "1", "2")]
    lines = lay_out(("network", "layers measured", "layers predicted"), rows, 1, width=29)
    assert [line.split() for line in lines] == [["layers", "layers"], ["network", "measured", "predicted"], [*rows[0]]]


@given(text=_NAMES, width=st.integers(1, 40))
def test_a_cut_text_fits_and_keeps_its_ends(text: str, width: int) -> None:
    """A text is never wider than asked for, is unchanged if it fits, and otherwise begins and ends as before."""
    cut = middle_cut(text, width)
    assert cell_len(cut) <= width
    if cell_len(text) <= width:
        assert cut == text
    else:
        head, _, tail = cut.partition("…")
        assert text.startswith(head) and text.endswith(tail)


@given(rows=st.lists(st.tuples(_NAMES, _NAMES, st.integers(0, 10**6).map(str)), min_size=1, max_size=5))
def test_every_line_of_names_and_numbers_fits(rows: list[tuple[str, str, str]]) -> None:
    """Two columns of names and one of numbers fit into 40 columns, whatever the names."""
    lines = lay_out(("name", "other", "n"), rows, 2, width=40)
    assert all(cell_len(line) <= 40 for line in lines)
