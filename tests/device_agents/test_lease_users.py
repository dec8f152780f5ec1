"""Users who share a board: they exclude each other, and none of them can lock the others out by what it writes.

Another user is a child process that gives up the rights of root, so these tests need root.
"""

import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import OTHER, as_other

from device_agents.lease import Lease, LeaseHeld, LeaseRemoved, holder_of

GROUP = 23456

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of locks as root creates it for all users of a machine."""
    folder = Path(tempfile.mkdtemp(prefix="harness-test-leases-", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(folder))
    yield folder
    shutil.rmtree(folder)


def take() -> int:
    """Take the lease and leave it again."""
    lease = Lease("board")
    token = lease.acquire("somebody")
    lease.release()
    return token


@pytest.mark.usefixtures("shared")
def test_users_exclude_each_other_and_tokens_grow() -> None:
    """A board that one user holds is refused to another by name; afterwards the other gets a larger token."""
    lease = Lease("board")
    token = lease.acquire("root@lab")
    assert as_other(take) == "LeaseHeld: board is leased by root@lab"
    assert as_other(lambda: holder_of("board")) == "'root@lab'"
    lease.extend(time.monotonic() + 60, 60)
    lease.release()
    theirs = int(as_other(take))
    assert theirs > token
    assert take() > theirs


def test_another_user_cannot_remove_or_replace_the_lock(shared: Path) -> None:
    """The sticky folder keeps the lock of the user who made it; that of another is noticed when it is gone."""
    take()
    path = shared / "board.lease"
    assert as_other(path.unlink).startswith("PermissionError")
    assert as_other(lambda: path.rename(shared / "gone")).startswith("PermissionError")
    path.unlink()
    as_other(take)
    assert path.stat().st_uid == OTHER
    lease = Lease("board")
    lease.acquire("root@lab")
    as_other(path.unlink)
    with pytest.raises(LeaseRemoved):
        lease.extend(time.monotonic() + 60, 60)
    lease.release()


@pytest.mark.parametrize("ahead_s", [3700, 86_400, 9 * 366 * 86_400, 1 << 61])
def test_tokens_that_another_user_writes_are_repaired_at_once(shared: Path, ahead_s: int) -> None:
    """A token more than an hour ahead is gone after the next lease, whose own token is that of the clock."""
    before = take()
    record = {"token": int(time.time()) + ahead_s, "holder": "eve"}
    as_other(lambda: (shared / "board.lease").write_text(json.dumps(record)))
    after = take()
    assert before < after <= max(before, int(time.time())) + 1
    assert json.loads((shared / "board.lease").read_text())["token"] == after


def test_tokens_cannot_be_pushed_on_and_on(shared: Path) -> None:
    """However often another user writes the largest token that counts, tokens stay within an hour of the clock."""
    for _ in range(5):
        record = {"token": int(time.time()) + 3599}
        as_other(lambda record=record: (shared / "board.lease").write_text(json.dumps(record)))
        assert take() <= time.time() + 3605


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_copies_of_the_token_are_of_one_user(shared: Path, mode: int) -> None:
    """What another user puts where the copy belongs does not count, and is not written to."""
    copy = shared / "board.0.token"

    def plant() -> None:
        copy.write_text(json.dumps({"token": (1 << 62) - 1}))
        copy.chmod(mode)

    as_other(plant)
    assert take() <= time.time() + 1
    assert json.loads(copy.read_text())["token"] == (1 << 62) - 1


def test_each_user_keeps_a_copy(shared: Path) -> None:
    """Tokens of each user grow though the lock file is emptied and the clock set back."""
    mine, theirs = take(), int(as_other(take))
    for path in shared.glob("*.lease"):
        path.write_text("")
    assert int(as_other(lambda: (setattr(time, "time", lambda: 12.0), take())[1])) > theirs
    (shared / "board.lease").write_text("")
    assert take() > mine
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in shared.glob("*.token")} == {
        "board.0.token": 0o600,
        f"board.{OTHER}.token": 0o600,
    }


def test_a_lock_file_that_is_closed_to_others_says_whose_it_is(shared: Path) -> None:
    """A user who makes the lock file and closes it gets named, with the remedy."""
    take()
    (shared / "board.lease").chmod(0o600)
    assert "closed to this user by user 0; have it removed" in as_other(take)


def test_a_folder_for_a_group_admits_its_members_only(shared: Path) -> None:
    """A folder that root makes with mode 1770 for a group keeps out all others."""
    os.chown(shared, 0, GROUP)
    shared.chmod(0o1770)
    take()
    assert as_other(take).startswith("PermissionError")
    assert int(as_other(take, GROUP)) > 0
    with pytest.raises(LeaseHeld):
        _hold_and_take()


def _hold_and_take() -> None:
    lease = Lease("board")
    lease.acquire("root@lab")
    try:
        take()
    finally:
        lease.release()
