"""Each state in which a journal cannot be used has an error of its own, whose advice cannot lose samples."""

import contextlib
import errno
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from altered_journals import editing, page_size
from command_line import Harness

from harness.errors import JournalError
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import CampaignKey, Slot
from harness.measure.journal.schema import SCHEMA_VERSION
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with a campaign of some pages, in a workspace."""
    path = tmp_path / ".harness" / "journal.sqlite"
    probe = reference_probe()
    plan = ProbePlan({probe.id: probe}, (), (Batch((probe.id,)),), probe.id, (), AuxiliaryKind.AVGPOOL)
    with Journal(path) as journal:
        campaign = journal.begin(CampaignKey("d", plan.id, {}, {}), plan, "cpu", 1).id
        journal.add(campaign, 1, [(Slot(0, at, 0), probe.id, [Sample(5, 5, None, 0)] * 40) for at in range(20)], {})
    return path


def _kept(share: float) -> Callable[[Path], None]:
    """Keep a part of the file."""
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


def _overwrite(at: int, content: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(content)

    return change


def _replace(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Put something else in the place of the file."""

    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _foreign(version: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE photos (name TEXT)")
            db.execute(f"PRAGMA user_version={version}")

    return _replace(make)


def _edited(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with editing(path) as db:
            db.execute(statement)

    return change


def _zero_pages(path: Path) -> None:
    size = page_size(content := path.read_bytes())
    path.write_bytes(content[:size] + bytes(len(content) - size))


STATES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "cut in half": (_kept(0.5), "is damaged", "backup.*recover"),
    "only its first page": (_kept(0.1), "is damaged", "backup.*recover"),
    "a few bytes": (_replace(lambda path: path.write_bytes(b"\n")), "is not a database", "workspace"),
    "a head and noise": (_overwrite(100, b"\xff" * 5000), "is damaged", "backup.*recover"),
    "text": (_replace(lambda path: path.write_bytes(b"no journal\n" * 400)), "is not a database", "workspace"),
    "its first bytes gone": (_overwrite(0, bytes(16)), "is not a database", "backup"),
    "zeros behind the first page": (_zero_pages, "is damaged", "backup.*recover"),
    "names of tables that are no text": (_overwrite(3900, b"\xff\x92" * 90), "is damaged", "backup.*recover"),
    "a table less": (_edited("DROP TABLE samples"), "is damaged", "backup.*recover"),
    "an index less": (_edited("DROP INDEX troubled_probes"), "is damaged", "backup.*recover"),
    "another program's": (_foreign(0), "belongs to another program", "workspace"),
    "another program's, same version": (_foreign(SCHEMA_VERSION), "belongs to another program", "workspace"),
    "another program's, earlier version": (_foreign(SCHEMA_VERSION - 1), "belongs to another program", "workspace"),
    "a newer version's": (_edited(f"PRAGMA user_version={SCHEMA_VERSION + 1}"), "another version", "version"),
    "a version's that is too old": (_edited("PRAGMA user_version=1"), "another version", "version"),
    "a folder": (_replace(Path.mkdir), "is not a file", "Rename"),
    "a pipe": (_replace(os.mkfifo), "is not a file", "Rename"),
    "a link to nowhere": (_replace(lambda path: path.symlink_to("/nowhere")), "is not a file", "Rename"),
    "a link to itself": (_replace(lambda path: path.symlink_to(path)), "is not a file", "Rename"),
    "a folder as its log": (lambda path: Path(f"{path}-wal").mkdir(), "cannot be opened", "write to the file"),
    "an impossible sample": (_edited("UPDATE samples SET wall_ns='soon'"), "was altered on disk", "--exclude"),
    "an impossible clock": (_edited("UPDATE campaigns SET clock='sundial'"), "was altered on disk", "--exclude"),
    "an impossible plan": (_edited("UPDATE probes SET terms='[]'"), "was altered on disk", "--exclude"),
}


def _read(path: Path) -> None:
    with Journal(path) as journal:
        for one in journal.campaigns("d"):
            journal.probes(one.id)
            journal.samples(one.id)


def _files(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() if one.is_file() else b"" for one in folder.iterdir()}


@pytest.mark.parametrize("state", STATES)
def test_what_is_wrong_with_a_journal_is_said_without_bad_advice(path: Path, state: str) -> None:
    """The error names the state and a next step; none is to move a journal away, or to free space where there is.

    No file is changed, and beside the file of another program none is made.
    """
    change, what, step = STATES[state]
    change(path)
    before = _files(path.parent)
    with pytest.raises(JournalError, match=what) as met:
        _read(path)
    assert re.search(step, met.value.next_step)
    assert met.value.why
    after = _files(path.parent)
    assert before.items() <= after.items()
    assert after == before or "another program" not in what
    assert not re.search(r"(?i)\b(move|delete|remove|free space)\b", str(met.value))


@contextlib.contextmanager
def _locked(path: Path, statement: str) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute(statement)
        db.execute("UPDATE campaigns SET token=token")
        yield


def test_a_journal_that_another_process_has_locked_is_not_a_full_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error about a lock names the other process, and neither the disk nor permissions."""
    monkeypatch.setattr("harness.measure.journal.database.LOCK_WAIT_S", 0.1)
    with Journal(path) as journal, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match=r"cannot be written.*Another process has locked it.*continues"):
            journal.spend(1, 1, 1.0)
    with _locked(path, "BEGIN EXCLUSIVE"), pytest.raises(JournalError, match=r"cannot be opened.*locked it.*Wait"):
        Journal(path)
    with Journal(path) as journal:
        assert journal.check_all() == {1: "intact"}


def test_a_file_system_without_locks_is_no_other_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite reports a file system that locks no file as a lock of another process; the error names the file system."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("harness.measure.journal.database.LOCK_WAIT_S", 0.1)
    monkeypatch.setattr("fcntl.lockf", refuse)
    with _locked(path, "BEGIN EXCLUSIVE"), pytest.raises(JournalError, match=r"No locks available.*local disk"):
        Journal(path)


def test_a_lock_beside_which_no_file_can_be_made_is_another_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in which no file can be made does not show that its file system locks none."""

    def refuse(**_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("harness.measure.journal.database.LOCK_WAIT_S", 0.1)
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with _locked(path, "BEGIN EXCLUSIVE"), pytest.raises(JournalError, match=r"cannot be opened.*locked it.*Wait"):
        Journal(path)


def test_a_journal_in_a_folder_that_may_not_be_written_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading writes nothing beside the file; a change is an error that names the permission."""
    content = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    monkeypatch.setattr(os, "access", lambda *_: False)  # the user root may write anywhere
    with Journal(path, to_read=True) as journal:
        assert journal.check_all() == {1: "intact"}
        with pytest.raises(JournalError, match=r"cannot be written.*may write"):
            journal.spend(1, 1, 1.0)
        assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == content


def test_a_log_that_was_cut_loses_whole_commits_only(path: Path) -> None:
    """After damage to the write-ahead log, the journal is that of an earlier commit, and intact."""
    with Journal(path) as journal:
        for number in range(8):
            journal.add(1, 1, [(Slot(1, number, 0), reference_probe().id, [Sample(5, 5, None, 0)] * 9)], {})
        log, file = Path(f"{path}-wal").read_bytes(), path.read_bytes()
    found = set()
    for share in (0.0, 0.3, 0.6, 0.99, 1.0):
        path.write_bytes(file)
        Path(f"{path}-wal").write_bytes(log[: int(share * len(log))])
        with Journal(path) as journal:
            assert journal.check_all() == {1: "intact"}
            found.add(sum(len(journal.slots(1, 1, number)) for number in range(8)))
    assert found >= {0, 8} and len(found) > 2


def test_commands_end_with_the_error_of_the_journal(path: Path) -> None:
    """`journal check` and `lut build` end with exit 3, also for a journal that is empty or whose folder is a file."""
    harness = Harness(path.parent.parent, path.parent, path.parent)
    os.truncate(path, path.stat().st_size // 2)
    for command in (("journal", "check"), ("lut", "build", "--device", "cpu01")):
        failed = harness(*command)
        assert failed.code == 3 and "is damaged" in failed.stderr and "recover" in failed.stderr
    os.truncate(path, 0)
    assert "0 campaigns intact, 0 altered" in harness("journal", "check").assert_ok().stdout
