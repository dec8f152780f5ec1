"""Printing and writing: tables, reports, errors and files."""

import csv
import io
import os
import threading
from pathlib import Path

import pytest

from harness.cli.terminal import output
from harness.errors import ConfigurationError, HarnessError
from harness.text import Table


def test_table_aligns_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """The first columns are flush left, the others flush right, no line ends in spaces, no column is empty."""
    rows = [("a", "", "Conv", "1.5", ""), ("longer", "", "Add", "12.25", "")]
    output.print_table(("name", "none", "op", "ms", "note"), rows, left=3)
    assert capsys.readouterr().out.splitlines() == ["name    op       ms", "a       Conv    1.5", "longer  Add   12.25"]


def test_a_note_stands_after_what_was_printed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that holds both streams has their lines in order, although stdout is buffered."""
    with (tmp_path / "log").open("w+") as log, os.fdopen(os.dup(log.fileno()), "w", 1) as stderr:
        monkeypatch.setattr("sys.stdout", log)
        monkeypatch.setattr("sys.stderr", stderr)
        output.print_line("result")
        output.note("next step")
        log.seek(0)
        assert log.read() == "result\nnext step\n"


def test_table_with_bars_has_a_last_column_flush_left(capsys: pytest.CaptureFixture[str]) -> None:
    """The column of bars starts at the same place in every row."""
    output.print_table(("n", "bar"), [("1", "#"), ("10", "####")], left=0, bars=True)
    assert capsys.readouterr().out.splitlines() == [" n  bar", " 1  #", "10  ####"]


def test_table_off_a_terminal_keeps_rows_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A long cell is neither folded nor cut in a pipe, and markup in a cell is plain text."""
    name = "[red]" + "x" * 500
    output.print_table(("name", "n"), [(name, "1")])
    assert capsys.readouterr().out.splitlines()[1] == f"{name}  1"


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Names in tables, facts and errors are printable."""
    output.print_report([Table(("\x1b[31mh",), [("\x07",)]), (("label", "\x1b]0;title\x07"),), "\x1b[2J"])
    output.print_error(HarnessError("\x1b[2J", why="\x08", next_step="\x07"))
    shown = "".join(capsys.readouterr())
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_parts_of_a_report_are_separated_by_blank_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A title stands directly above its table; a blank line stands before everything else."""
    output.print_report([Table(("a",), []), "title", Table(("b",), []), (("c", "d"),)])
    assert capsys.readouterr().out == "a\n\ntitle\nb\n\nc            d\n"


def test_errors_shorten_enormous_words(capsys: pytest.CaptureFixture[str]) -> None:
    """The middle of a name of ten thousand characters is left out; its ends stay."""
    output.print_error(HarnessError("a" * 5000 + "b" * 5000 + " is missing"))
    shown = capsys.readouterr().err
    assert shown == f"error: {'a' * 60}…{'b' * 60} is missing\n"


def test_csv_has_the_names_of_the_rows_and_no_formulas(tmp_path: Path) -> None:
    """Columns follow the first row, None is empty, and text that starts like a formula is quoted."""
    output.write_csv(tmp_path / "t.csv", [{"name": "=cmd()", "n": 1}, {"n": None, "name": "b"}])
    found = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert found == [{"name": "'=cmd()", "n": "1"}, {"name": "b", "n": ""}]


def test_results_can_be_written_to_a_pipe(tmp_path: Path) -> None:
    """A pipe or a device such as /dev/stdout is written to, not replaced by a file."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    output.write_result(pipe, "result")
    reader.join()
    assert read == ["result"] and pipe.is_fifo()


def test_missing_folders_are_refused(tmp_path: Path) -> None:
    """Writing into a folder that does not exist names the file."""
    with pytest.raises(ConfigurationError, match="none/x cannot be written"):
        output.write_result(tmp_path / "none" / "x", "")
