"""Rows of a file: what cannot be used is refused with its line, and nothing in a cell does more than be data."""

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Harness
from hypothesis import given, settings, strategies as st
from import_files import HEADER, MAPPING, row, run_import, write_mapping, write_rows

from harness.errors import ConfigurationError
from harness.lut.table_files import read_lut
from harness.table_import import imported_layers, source_file
from harness.table_import.cells import BadRow, Column, Row, number, shape, size
from harness.table_import.importing import import_lut


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"h": "=1+1"}, "h is '=1+1'"),
        ({"h": "=cmd|' /C calc'!A0"}, "not a whole number"),
        ({"h": "28.5"}, "not a whole number"),
        ({"h": "-28"}, "not a whole number"),
        ({"h": ""}, "h is ''"),
        ({"h": "99999999999999999999"}, "not a whole number"),
        ({"h": "٢٨"}, "not a whole number"),
        ({"kind": "wide"}, "negative dimension"),
        ({"ms": "nan"}, "ms is 'nan'"),
        ({"ms": "inf"}, "not a number"),
        ({"ms": "1e400"}, "not a number"),
        ({"ms": "0"}, "not a latency"),
        ({"ms": "-0.5"}, "not a latency"),
        ({"ms": "1e300"}, "not a latency"),
        ({"ms": "0x10"}, "not a number"),
        ({"ms": "1_0"}, "not a number"),
        ({"ms": "\x1b[31m0.5"}, "not a number"),
    ],
)
def test_a_bad_cell_is_refused_with_its_line(harness: Harness, changed: dict[str, str], reason: str) -> None:
    """A cell that is no size or no time ends the command with line and reason, and nothing is written.

    If no other row is left, `--skip-invalid` does not hide the reason.
    """
    rows = [row(), row(k=64), row(**changed)]
    wide = {**MAPPING["operator"][0], "where": {"kind": "wide"}, "kernel": 100, "padding": 0}
    sections = [wide, *MAPPING["operator"]] if "kind" in changed else MAPPING["operator"]
    refused = run_import(harness, rows, operator=sections)
    refused.assert_refused(3, mentions=("1 of 3 rows", "line 4", reason, "--skip-invalid"))
    assert not (harness.workspace / "lut").exists()
    run_import(harness, rows, "--skip-invalid", operator=sections).assert_ok()
    assert len(read_lut(harness.table).entries) == 2
    alone = run_import(harness, rows[2:], "--skip-invalid", operator=sections[:1])
    alone.assert_refused(3, mentions=("1 of 1 rows", "line 2", reason))


def test_rows_of_other_lengths_and_many_bad_rows_are_counted(harness: Harness) -> None:
    """Ten lines are listed in the order of the file, those of one reason together, the others counted."""
    rows = [row(), row()[:4], [*row(), "x"], *(row(h="?") for _ in range(20))]
    refused = run_import(harness, rows).assert_refused(3, mentions=("22 of 23 rows", "4 cells instead of 10"))
    assert "and 12 more" in refused.stderr
    assert refused.stderr.index("line 3:") < refused.stderr.index("line 4:") < refused.stderr.index("lines 5, 6, 7")
    found = run_import(harness, rows, "--skip-invalid", "--json").data
    assert found["rows"] == {"read": 23, "not_measured": 0, "unselected": 0, "invalid": 22}
    assert len(found["invalid"]) == 10 and found["entries"] == 1


def test_rows_that_were_not_measured_or_belong_to_no_section_are_counted(harness: Harness) -> None:
    """Cells that stand for "not measured" and rows that no section selects are left out without an error."""
    rows = [row(), row(k=64, ms=-1), row(k=65, ms="n/a"), row(kind="pool")]
    section = {**MAPPING["operator"][0], "where": {"kind": "conv"}}
    found = run_import(harness, rows, "--json", not_measured=[-1, "n/a"], operator=[section]).data
    assert found["rows"] == {"read": 4, "not_measured": 2, "unselected": 1, "invalid": 0}
    idle = {**section, "where": {"kind": "Conv"}}
    run_import(harness, rows, operator=[section, idle]).assert_refused(3, mentions=("number 2", "where"))


def test_a_file_is_read_whatever_its_separators_and_line_ends(harness: Harness) -> None:
    """Byte order marks, CRLF, quotes, semicolons, and a file without a header give the same table."""
    folder, latencies = harness.workspace, set()
    plain = ",".join(HEADER) + "\n" + ",".join(map(str, row())) + "\n"
    variants: list[tuple[bytes, dict[str, Any]]] = [
        (plain.encode(), {}),
        (b"\xef\xbb\xbf" + plain.encode(), {}),
        (plain.replace("\n", "\r\n").encode() + b"\r\n", {}),
        (plain.replace(",", ";").encode(), {"delimiter": ";"}),
        (plain.replace("conv", '"con\nv, or so"').encode(), {}),
        (plain.partition("\n")[2].encode(), {"columns": list(HEADER)}),
        (plain.replace(",28,28,", ",28.0,28.0,").encode(), {}),
    ]
    for content, changed in variants:
        (folder / "x.csv").write_bytes(content)
        found = harness("lut", "import", "x.csv", "--mapping", write_mapping(folder, **changed), "--json").data
        latencies |= {(one.key, one.latency_s) for one in read_lut(Path(found["lut"])).entries}
    assert len(latencies) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no header"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"kind,n,n\n", "twice"),
        (b"kind,n,,\n", "several columns have no name"),
        (b"kind,n,c,h,w,k,size,strides,ms\n", "Did you mean stride"),
        (b"kind,n,c,h,w,k,size,stride,ms\n" + b"x" * 200_000 + b"\n", "field larger"),
        (b'kind,n,c,h,w,k,size,stride,ms\n"conv,1,8,8,8,8,3,1,1\n', "Line 2: unexpected end"),
        (b"kind,n,c,h,w,k,size,stride,ms\n", "[[operator]] number 1"),
        (b",".join(b"c%d" % at for at in range(2000)) + b"\n", "too many columns"),
    ],
)
def test_a_file_that_is_no_table_is_refused(harness: Harness, content: bytes, reason: str) -> None:
    """Empty files, other encodings, headers that do not fit and endless cells each have a clear error."""
    (harness.workspace / "x.csv").write_bytes(content)
    refused = harness("lut", "import", "x.csv", "--mapping", write_mapping(harness.workspace))
    assert reason.lower() in refused.assert_refused(3).stderr.lower()


def test_files_are_bounded(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes, rows or layers than the limits are refused, and a sample of a larger file is not."""
    rows = [row(k=at) for at in range(1, 8)]
    monkeypatch.setattr(imported_layers, "MAX_ENTRIES", 5)
    run_import(harness, rows).assert_refused(3, mentions=("5 different layers", "--sample"))
    run_import(harness, rows, "--sample", "4").assert_ok()
    monkeypatch.setattr(source_file, "MAX_ROWS", 6)
    run_import(harness, rows).assert_refused(3, mentions=("more than 6 rows",))
    monkeypatch.setattr(source_file, "MAX_FILE_BYTES", 20)
    run_import(harness, rows).assert_refused(3, mentions=("larger than 20 bytes",))
    harness("lut", "import", "/dev/zero", "--mapping", "mapping.toml").assert_refused(3, mentions=("plain file",))


def test_names_of_files_and_cells_reach_terminal_and_exports_as_plain_text(harness: Harness) -> None:
    """Control characters and formulas in names and in the provenance neither move the cursor nor compute."""
    named = "=1+1\x1b[2J.csv"
    write_rows(harness.workspace, [row()]).rename(harness.workspace / named)
    notes = {"tool": "=HYPERLINK(1)", "notes": "<script>alert(1)</script>"}
    mapping = write_mapping(harness.workspace, provenance=notes)
    harness("lut", "import", named, "--mapping", mapping).assert_ok()
    harness("lut", "show", "--device", "board").assert_ok()
    harness("lut", "export", "out.csv", "--device", "board").assert_ok()
    with (harness.workspace / "out.csv").open(newline="", encoding="utf-8") as file:
        assert not [cell for line in csv.reader(file) for cell in line if cell[:1] in "=+@" and cell]
    report = harness.workspace / "report.html"
    (harness.workspace / "x").mkdir()
    harness("lut", "import", named, "--mapping", mapping, "--html", report, "--json").assert_ok()
    assert "<script>alert(1)" not in report.read_text(encoding="utf-8")
    bad = write_mapping(harness.workspace, provenance={"tool": "a\x1b[2Jb"})
    harness("lut", "import", named, "--mapping", bad).assert_refused(3, mentions=("provenance.tool", "printable"))


CELLS = st.one_of(st.text(max_size=30), st.integers().map(str), st.floats().map(str))


@given(CELLS)
def test_a_cell_is_a_number_or_a_bad_row(cell: str) -> None:
    """Any text is read as a value in its range, or refused as a bad row with a printable reason."""
    for parse, least, most in ((size, 0, 1 << 31), (number, -sys.float_info.max, sys.float_info.max)):
        try:
            assert least <= parse(cell) <= most
        except BadRow as error:
            assert str(error).isprintable()
    try:
        assert all(0 <= one <= 1 << 31 for one in shape(cell))
    except BadRow as error:
        assert str(error).isprintable()


@settings(max_examples=40)
@given(rows=st.lists(st.lists(CELLS, min_size=9, max_size=11), min_size=1, max_size=5))
def test_any_cells_give_a_table_or_a_clear_error(
    rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the cells hold, an import succeeds or raises ConfigurationError, and counts every row."""
    folder = tmp_path_factory.mktemp("any")
    file, mapping = write_rows(folder, [row(), *rows]), write_mapping(folder)
    try:
        found = import_lut(file, mapping, workspace=folder, skip_invalid=True)
    except ConfigurationError as error:
        assert error.next_step or error.why
        return
    assert found.counts.read >= 1
    assert read_lut(found.table.path) == found.table


def test_a_translated_cell_must_be_listed() -> None:
    """A column with values translates the cells that it lists, takes `empty` for an empty one, and refuses others."""
    column = Column(column="a", values={"relu": "Relu"}, empty="none")
    assert [column.read(Row(1, {"a": cell})) for cell in ("relu", " ")] == ["Relu", "none"]
    with pytest.raises(BadRow, match="do not list"):
        column.read(Row(1, {"a": "gelu"}))


@pytest.mark.parametrize("text", ["1x64x56x56", "[1, 64, 56, 56]", "(1,64,56,56)", "1*64*56*56", "1 64 56 56"])
def test_a_shape_may_be_written_in_several_ways(text: str) -> None:
    """Shapes of common tools are read; other texts are no shapes."""
    assert shape(text) == (1, 64, 56, 56)
    with pytest.raises(BadRow):
        shape(text + "x")
