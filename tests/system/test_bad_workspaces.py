"""Workspaces and streams that cannot be used: one error, and files as they were."""

import os
import shutil
from pathlib import Path

import pytest
from command_line import TIMEOUT_S, Harness

from harness.errors import ConfigurationError
from harness.workspace import find_workspace


@pytest.mark.parametrize("place", ["file", "nowhere", "nul\udcff", "n" * 5000, "in\x1b[31mside"])
def test_workspace_that_is_no_folder_is_refused(place: str, harness: Harness, small_network: Path) -> None:
    """`--workspace` with a file or a missing folder is refused."""
    (harness.workspace / "file").write_text("")
    outcome = harness("profile", "--device", "null01", small_network, "--workspace", place)
    outcome.assert_refused(2, 3)


def test_marker_with_unknown_key_is_refused(harness: Harness) -> None:
    """A harness.toml with an unknown key is refused by name."""
    (harness.workspace / "harness.toml").write_text('colour = "red"\n')
    harness("devices", "list").assert_refused(3, mentions=("colour", "harness.toml"))


@pytest.mark.parametrize("content", [b"[", b"\xff", b"a = " + b"[" * 20_000], ids=["cut", "binary", "nested"])
def test_marker_that_is_not_toml_is_refused(content: bytes, harness: Harness) -> None:
    """A harness.toml that is not TOML is refused."""
    (harness.workspace / "harness.toml").write_bytes(content)
    harness("devices", "list").assert_refused(3, mentions=("harness.toml",))


def test_workspace_is_found_from_below(harness: Harness, small_network: Path) -> None:
    """From a folder inside the workspace the nearest parent with a harness.toml is used."""
    (harness.workspace / "harness.toml").write_text("")
    below = harness.workspace / "a" / "b"
    below.mkdir(parents=True)
    inside = Harness(below, harness.runtime, harness.home)
    inside("profile", "--device", "null01", small_network, "--runs", "2").assert_ok()
    assert (harness.workspace / ".harness" / "journal.sqlite").is_file()
    assert not any(below.iterdir())


def test_workspace_that_cannot_be_written_is_refused(harness: Harness, small_network: Path) -> None:
    """A read-only workspace ends with one error before anything is measured."""
    harness.workspace.chmod(0o555)
    try:
        if os.access(harness.workspace, os.W_OK):
            pytest.skip("this user may write everywhere")
        harness("profile", "--device", "null01", small_network).assert_refused(3)
    finally:
        harness.workspace.chmod(0o755)


def test_journal_folder_that_is_a_file_is_refused(harness: Harness, small_network: Path) -> None:
    """A file where the journal's folder should be ends with one error."""
    (harness.workspace / ".harness").write_text("")
    harness("profile", "--device", "null01", small_network).assert_refused(3)
    harness("lut", "build", "--device", "null01").assert_refused(3)


@pytest.mark.parametrize("content", [b"no database" * 100, b"SQLite format 3\0" + bytes(5000)], ids=["text", "zeros"])
def test_journal_that_is_no_database_is_refused(content: bytes, harness: Harness, small_network: Path) -> None:
    """A damaged journal is refused and left as it is."""
    folder = harness.workspace / ".harness"
    folder.mkdir()
    (folder / "journal.sqlite").write_bytes(content)
    harness("profile", "--device", "null01", small_network).assert_refused(3, mentions=("journal",))
    harness("lut", "build", "--device", "null01").assert_refused(3, mentions=("journal",))
    assert (folder / "journal.sqlite").read_bytes() == content


def test_tables_folder_that_is_a_file_is_refused(harness: Harness, profiled: Harness) -> None:
    """A file where the tables' folder should be ends with one error."""
    shutil.copytree(profiled.workspace / ".harness", harness.workspace / ".harness")
    (harness.workspace / "lut").write_text("")
    harness("lut", "build", "--device", "null01").assert_refused(3)


def test_full_disk_is_reported(unchanged: Harness, small_network: Path) -> None:
    """A result that cannot be written because the disk is full is an error and no bug report."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        unchanged.process("estimate", small_network, "--device", "null01", stdout=full).assert_refused(
            3, mentions=("free space",)
        )


def test_a_full_disk_takes_neither_result_nor_exit_code(unchanged: Harness, small_network: Path) -> None:
    """Where notes and errors cannot be written, the result and the exit code are as without them."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        found = unchanged.process("estimate", small_network, "--device", "npu01", "--json", stderr=full)
        missing = unchanged.process("estimate", "missing.onnx", "--device", "null01", stderr=full)
    assert (found.code, missing.code) == (0, 3) and found.json["networks"]


def test_reader_that_leaves_early_is_no_error(unchanged: Harness) -> None:
    """`harness … | head` ends in silence when the reader leaves."""
    process = unchanged.start("lut", "show", "--device", "null01")
    assert process.stdout is not None and process.stderr is not None
    with process.stderr:
        process.stdout.close()
        said = process.stderr.read()
    process.wait(timeout=TIMEOUT_S)
    assert said == "", said


def test_terminal_without_unicode_works(unchanged: Harness, small_network: Path) -> None:
    """Output to a terminal that knows ASCII only does not fail."""
    ascii_only = Harness(unchanged.workspace, unchanged.runtime, unchanged.home, {"PYTHONIOENCODING": "ascii"})
    ascii_only.process("lut", "show", "--device", "null01").assert_ok()
    ascii_only.process("estimate", small_network, "--device", "null01", "--layers").assert_ok()


def test_a_current_folder_that_was_removed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the current folder does not exist any more, the error has a next step."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigurationError, match=r"current folder was removed.*Change to a folder that exists"):
        find_workspace()
