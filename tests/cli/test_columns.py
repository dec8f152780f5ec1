"""Columns of text, fitted to a terminal."""

from collections import Counter

from hypothesis import given, strategies as st
from rich.cells import cell_len

from harness.cli.terminal.columns import fold_line, lay_out, middle_cut

_NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=60).map("n{}".format)


def test_names_are_cut_in_the_middle_and_numbers_stay_whole() -> None:
    """A table that is too wide keeps the two ends of a name, and every digit of a number."""
    rows = [("stage1.block2.conv3.weight.quantised", "1,234.5", "[0.3031, 0.3036]", "9.923e-10")]
    lines = lay_out(("layer", "latency µs", "95 % interval", "a"), rows, 1, width=57)
    assert lines[-1].endswith("1,234.5  [0.3031, 0.3036]  9.923e-10")
    assert lines[-1].startswith("stage1") and "…" in lines[-1]
    assert all(len(line) <= 57 for line in lines)
    mixed = ["[1.21e+05, 4.244e+05]", "0.9886 ns/byte", "Слой." * 9]
    lines = lay_out(("parameter", "interval"), [("start_up_of_layers", one) for one in mixed], 1, width=34)
    assert [line.split("  ")[-1].strip() for line in lines[1:3]] == mixed[:2]
    assert all(len(line) <= 34 for line in lines)


def test_names_of_digits_and_symbols_are_cut() -> None:
    """A name that begins with a number, or that has symbols alone, is cut as other names are."""
    for name in ("/".join(map(str, range(60))) + "/relu", "!" * 300, "9" * 300):
        for other in ("conv", name):
            lines = lay_out(("layer", "latency µs"), [(name, "1,234.5"), (other, "9.5")], 1, width=60)
            assert max(map(len, lines)) <= 60 and lines[-2].endswith("1,234.5")


def test_sentences_fold_at_words() -> None:
    """A cell of several words keeps all of them, and folds before a name beside it is cut."""
    table = "npu01/2026-11-28-joint-e6fd639a"
    assert table in lay_out(("device", "table", "why"), [("npu01", table, "the golden probe is bad")], 3, width=60)[1]
    rows = [("cpu01", "the golden probe was outside its band in the last night")]
    lines = lay_out(("device", "why"), rows, 2, width=30)
    assert " ".join(" ".join(lines[1:]).split()) == "cpu01 the golden probe was outside its band in the last night"
    assert all(len(line) <= 30 for line in lines)


def test_heads_are_stacked_above_narrow_columns() -> None:
    """A head that is wider than its numbers takes several lines before any name is cut."""
    rows = [("resnet50", "1", "2")]
    lines = lay_out(("network", "layers measured", "layers predicted"), rows, 1, width=29)
    assert [line.split() for line in lines] == [["layers", "layers"], ["network", "measured", "predicted"], [*rows[0]]]


def test_a_last_column_of_sentences_folds_and_one_of_bars_stays() -> None:
    """A flush left last column is text unless it is drawn."""
    drawn = lay_out(("n", "cycles"), [("1", "█" * 20 + " ◀ Pareto")], 0, bars=True, width=24)
    assert drawn[-1] == "1  " + "█" * 20 + " ◀ Pareto"
    shown = lay_out(("n", "source"), [("1", "a machine of the edge class")], 0, bars=True, width=18)
    assert shown[1:] == ["1  a machine of", "   the edge class"]


def test_columns_that_do_not_fit_stand_below_behind_the_first() -> None:
    """Numbers too many for the width are shown in a second block, whose rows begin with the name again."""
    lines = lay_out(
        ("network", "p50 ms", "p90 ms", "load ms"), [("resnet50", "1,234.5", "1,240.0", "5,000.1")], 1, width=27
    )
    assert [line.split() for line in lines] == [
        ["network", "p50", "ms", "p90", "ms"],
        ["resnet50", "1,234.5", "1,240.0"],
        ["network", "load", "ms"],
        ["resnet50", "5,000.1"],
    ]


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


@given(
    rows=st.lists(st.tuples(_NAMES, _NAMES, *[st.integers(0, 10**6).map(str)] * 6), min_size=1, max_size=5),
    left=st.integers(0, 2),
)
def test_every_line_of_names_and_numbers_fits(rows: list[tuple[str, ...]], left: int) -> None:
    """Two columns of names and six of numbers fit into 40 columns, whatever the names, and every number is there."""
    lines = lay_out(("name", "other", *"abcdef"), rows, left, width=40)
    assert all(cell_len(line) <= 40 for line in lines)
    shown = Counter(word for line in lines for word in line.split())
    assert all(shown[number] >= count for number, count in Counter(one for row in rows for one in row[2:]).items())


def test_a_line_breaks_between_its_parts_and_figures_stay_whole() -> None:
    """Parts are separated by two spaces; within a long one, a number keeps its unit, and a command its words."""
    assert fold_line("mean error 1.5 %  within 5 %: 98 %  clock: cpu", 36) == [
        "mean error 1.5 %  within 5 %: 98 %",
        "clock: cpu",
    ]
    assert fold_line("takes 12 ms on the device, 34.5 µs", 11) == ["takes 12 ms", "on the", "device,", "34.5 µs"]
    assert fold_line("now run `harness lut build` again", 12) == ["now run", "`harness lut build`", "again"]


@given(parts=st.lists(st.lists(_NAMES, min_size=1, max_size=4).map(" ".join), min_size=1, max_size=5))
def test_a_folded_line_fits_and_keeps_its_words(parts: list[str]) -> None:
    """No word is lost or moved, only a single longer word exceeds the width, and a part that fits is on one line."""
    lines = fold_line("  ".join(parts), 30)
    assert " ".join(lines).split() == " ".join(parts).split()
    assert all(cell_len(line) <= 30 or len(line.split()) == 1 for line in lines)
    assert all(any(part in line for line in lines) for part in parts if cell_len(part) <= 30)


def test_columns_go_below_before_words_are_cut_to_bits() -> None:
    """The first column keeps a third of the width; words beside it and words of heads keep twelve columns."""
    names = ["features.3.depthwise", "block.4.project"]
    rows = [
        (name, "Conv+BatchNormalization+Clip", "4f785adafdd1a997", "1,234.5", "14.8%", "89.1 MiB") for name in names
    ]
    lines = lay_out(("layer", "operators", "key", "latency µs", "share", "moved"), rows, 3, width=60)
    assert max(map(len, lines)) <= 60
    assert all(sum(line.startswith(name) for line in lines) == 2 for name in names)
    words = " ".join(lines).split()
    assert "operators" in words and all(len(word) >= 12 for word in words if "…" in word)


def test_names_that_differ_are_shown_different() -> None:
    """Names in the first column keep what distinguishes them, and columns without room follow below."""
    names = [f"block.{number}.pointwise.convolution" for number in range(1, 5)]
    rows = [(name, *["1,234,567 / 1,234,567"] * 3) for name in names]
    lines = lay_out(("layer", "one", "rows", "outputs"), rows, 1, width=80)
    assert max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines if line.startswith("block")]
    assert len(set(shown)) == 4


def test_a_last_column_of_sentences_is_flush_left() -> None:
    """A last column of sentences is flush left, whatever their lengths; a last column of numbers stays flush right."""
    rows = [("a", "1", "the golden probe is in its band"), ("b", "20", "never measured")]
    assert [line.index(row[2]) for line, row in zip(lay_out(("x", "n", "why"), rows, 1)[1:], rows, strict=True)] == [
        7,
        7,
    ]
    assert lay_out(("x", "n"), [row[:2] for row in rows], 1)[1:] == ["a   1", "b  20"]
