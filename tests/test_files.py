"""Files of the host: bounded reads, whole writes, and CSV that spreadsheets do not execute."""

import csv
import fcntl
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from harness.errors import ConfigurationError
from harness.files import csv_text, read_file, read_large, spreadsheet_cell, spreadsheet_csv, write_synced, write_whole

TEXT = st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=20)


@pytest.mark.parametrize("read", [read_file, read_large])
def test_reads_are_bounded_and_do_not_wait(read: Callable[[Path, int], bytes | memoryview], tmp_path: Path) -> None:
    """A file up to the limit is read; a larger one, a folder and a pipe without a writer are refused at once."""
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read(path, 4)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=r"not a plain file|directory"):
            read(other, 5)


def test_whole_write_follows_links_and_replaces(tmp_path: Path) -> None:
    """A write through a symbolic link replaces the file that it names, and leaves no temporary file."""
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "target.csv"]
    with pytest.raises(ConfigurationError, match=r"cannot be written\. It is not a regular file"):
        write_whole(tmp_path, b"")


def test_a_whole_write_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    """A temporary file that no writer holds goes with the next write; one that is held, new or the user's stays."""
    left, held, new = (tmp_path / f".writing-{digit * 12}.html" for digit in "0af")
    own = {tmp_path / f".writing-{name}" for name in ("notes.html", "0123456789abcdef", "0123456789ab.tar.gz")}
    for path in (left, held, new, *own):
        path.write_text("half")
    for path in (left, held, *own):
        os.utime(path, (0, 0))
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_whole(tmp_path / "page.html", b"whole")
    assert set(tmp_path.iterdir()) == {held, new, *own, tmp_path / "page.html"}


def test_reading_a_folder_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """A folder where a file is expected is an error, and nothing stays open."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(IsADirectoryError):
            read_file(tmp_path, 100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_synced_write_does_not_overwrite(tmp_path: Path) -> None:
    """A file that exists is not overwritten."""
    write_synced(tmp_path / "f", b"1")
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "f", b"2")
    assert (tmp_path / "f").read_bytes() == b"1"


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_exact_csv_is_read_back(rows: list[tuple[str, str]]) -> None:
    """Every cell of `csv_text` is read back unchanged."""
    text = csv_text(("a", "b"), rows, quoting=csv.QUOTE_NONNUMERIC)
    assert [tuple(row) for row in csv.reader(io.StringIO(text, newline=""))] == [("a", "b"), *rows]


@given(st.lists(st.tuples(TEXT, st.sampled_from("=+-@"), TEXT), min_size=1, max_size=5))
def test_no_cell_is_a_formula(parts: list[tuple[str, str, str]]) -> None:
    """In a CSV for people no text begins with a character that starts a formula, and lines end with a line feed."""
    cells = [before[:0] + sign + after for before, sign, after in parts] + [
        f" {sign}{after}" for _, sign, after in parts
    ]
    text = spreadsheet_csv(("cell", "number"), [(cell, -1.5) for cell in cells])
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert all(not row[0].lstrip().startswith(("=", "+", "-", "@")) and row[1] in ("number", "-1.5") for row in rows)
    assert "\r" not in text and len(rows) == len(cells) + 1


@pytest.mark.parametrize("sign", "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\u2212")
@pytest.mark.parametrize("before", ["", " ", '"', "a;", "a; ", 'a;"', "a;b;;"])
def test_signs_that_begin_a_cell_follow_an_apostrophe(before: str, sign: str) -> None:
    """A sign that begins a cell has an apostrophe, also after the semicolons that separate cells in some countries."""
    cell = spreadsheet_cell(f"{before}{sign}1+1")
    assert isinstance(cell, str) and cell.replace("'", "") == f"{before}{sign}1+1"
    assert all(part[:1] == "'" for part in cell.split(";") if part.strip(' \u3000"')[:1] in ("'", sign))
    assert not any(part.strip(' \u3000"').startswith(sign) for part in cell.split(";"))


@pytest.mark.parametrize("text", ["Conv+Relu", "a-b@c", "1;2;3", "x=1", "2026-01-02", ""])
def test_other_cells_are_as_they_were(text: str) -> None:
    """Text that is no formula is written unchanged, and numbers stay numbers."""
    assert spreadsheet_cell(text) == text
    assert spreadsheet_cell(-1.5) == -1.5
