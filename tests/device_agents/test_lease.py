"""One holder per resource, tokens that only grow, and a lock that dies with its process."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lock_looker import look_at

from device_agents.lease import Lease, LeaseHeld, LeaseRemoved, evict_stopped, holder_of

REPOSITORY = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from device_agents.lease import Lease
lease = Lease("board")
token = lease.acquire("the other process")
lease.extend(time.monotonic() + float(sys.argv[2]), 0.0)
print(token, flush=True)
sys.stdin.read()
"""


def _hold(for_s: float = 60.0) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", HOLD, str(REPOSITORY), str(for_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 300
    while (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_second_process_is_refused_with_the_name_of_the_holder() -> None:
    """A resource that another process holds cannot be taken, and its holder is named."""
    process, _ = _hold()
    try:
        assert holder_of("board") == "the other process"
        with pytest.raises(LeaseHeld) as caught:
            Lease("board").acquire("me")
        assert caught.value.holder == "the other process"
    finally:
        _kill(process)


def test_killed_holder_leaves_the_resource_free_with_a_larger_token() -> None:
    """SIGKILL frees the lock, and the next token is larger."""
    process, token = _hold()
    _kill(process)
    assert holder_of("board") is None
    lease = Lease("board")
    assert lease.acquire("me") > token
    lease.release()
    assert lease.acquire("me again") > token + 1
    lease.release()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGCONT])
def test_a_stopped_holder_whose_lease_ran_out_is_ended(number: int) -> None:
    """The next controller kills a holder that is stopped beyond its lease, but not one that runs."""
    process, token = _hold(for_s=-10.0)
    try:
        os.kill(process.pid, number)
        _wait_for_state(process.pid, "T" if number == signal.SIGSTOP else "S")
        assert evict_stopped("board") == (number == signal.SIGSTOP)
        lease = Lease("board")
        if number == signal.SIGSTOP:
            assert lease.acquire("me") > token
            assert process.wait(300) == -signal.SIGKILL
            lease.release()
        else:
            with pytest.raises(LeaseHeld):
                lease.acquire("me")
    finally:
        _kill(process)


def test_a_stopped_holder_keeps_its_lease_while_that_lasts() -> None:
    """A holder that is stopped for a moment keeps the device."""
    process, _ = _hold()
    try:
        os.kill(process.pid, signal.SIGSTOP)
        _wait_for_state(process.pid, "T")
        with pytest.raises(LeaseHeld):
            Lease("board").acquire("me")
    finally:
        _kill(process)


def test_tokens_grow_over_a_reboot_with_a_wrong_clock(runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens still grow after a reboot that emptied the lock folder and set the clock back."""
    first, second = Lease("board"), Lease("board")
    token = first.acquire("me")
    first.release()
    (runtime_folder / "board.lease").unlink()
    monkeypatch.setattr(time, "time", lambda: 12.0)
    assert second.acquire("me") > token
    second.release()


@pytest.mark.parametrize("then", [{20: fcntl.LOCK_UN}, {20: fcntl.LOCK_EX, 22: fcntl.LOCK_UN}])
def test_who_looks_at_the_lock_keeps_nobody_from_it(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch, then: dict[int, int]
) -> None:
    """Who asks for the holder, however slowly, does not make the resource busy, nor who then locks it for a moment."""
    Lease("board").acquire("before", shared=True)
    looking = look_at(runtime_folder / "board.lease", monkeypatch, then)
    lease = Lease("board")
    assert lease.acquire("me")
    lease.release()
    os.close(looking)


def test_resources_do_not_exclude_each_other() -> None:
    """Two resources are locked independently."""
    first, second = Lease("one"), Lease("two")
    first.acquire("me")
    second.acquire("me")
    first.release()
    second.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"token": "x"}', b"\xff\xff", b'{"token": true}'])
def test_damaged_lock_file_does_not_matter(runtime_folder: Path, content: bytes) -> None:
    """A lock file cut off by a power failure does not block the device."""
    (runtime_folder / "board.lease").write_bytes(content)
    lease = Lease("board")
    assert lease.acquire("me") > 1_000_000_000
    lease.release()


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "a\n", "x" * 65, ".hidden"])
def test_names_that_are_paths_are_refused(name: str) -> None:
    """A resource name never leaves the folder of locks."""
    with pytest.raises(ValueError):
        Lease(name)
    with pytest.raises(ValueError):
        holder_of(name)


def test_link_in_place_of_the_lock_file_is_refused(runtime_folder: Path, tmp_path: Path) -> None:
    """A lock file that is a link is not followed."""
    (runtime_folder / "board.lease").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        Lease("board").acquire("me")
    assert not (tmp_path / "victim").exists()


def test_shared_leases_exclude_nobody_and_their_tokens_grow() -> None:
    """Sessions that share a resource get tokens at the same time, each larger than the one before."""
    shared = [Lease("board") for _ in range(3)]
    tokens = [lease.acquire("one of many", shared=True) for lease in shared]
    assert tokens == sorted(set(tokens)) and holder_of("board") is None
    alone = Lease("board")
    assert alone.acquire("me") > tokens[-1]
    alone.release()
    for lease in shared:
        lease.release()


def test_shared_lease_is_refused_by_a_holder() -> None:
    """A session that asked for the resource alone keeps it."""
    process, _ = _hold()
    try:
        with pytest.raises(LeaseHeld, match="the other process"):
            Lease("board").acquire("one of many", shared=True)
    finally:
        _kill(process)


def _lock_of_another_controller(path: Path) -> int:
    """A lock on the file that is now at the path, as a controller holds it that knows no tokens."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


@pytest.mark.parametrize("is_replaced", [False, True])
def test_lock_on_a_removed_file_is_noticed_on_renewal(runtime_folder: Path, is_replaced: bool) -> None:
    """A holder whose lock file was removed or replaced does not keep its lease, since it excludes nobody."""
    lease, path = Lease("board"), runtime_folder / "board.lease"
    lease.acquire("me")
    lease.extend(time.monotonic() + 60, 60)
    path.unlink()
    if is_replaced:
        path.write_bytes(b"")
    with pytest.raises(LeaseRemoved, match="lock file of board"):
        lease.extend(time.monotonic() + 60, 60)
    lease.release()


def test_lock_is_taken_on_the_file_that_others_see(runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock file that is replaced between opening and locking gives nobody a second lock beside that of another."""
    path, flock = runtime_folder / "board.lease", fcntl.flock
    Lease("board").acquire("before", shared=True)
    held: list[int] = []

    def replacing(handle: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        held.append(_lock_of_another_controller(path))
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", replacing)
    with pytest.raises(LeaseHeld):
        Lease("board").acquire("me")
    os.close(held.pop())
    lease = Lease("board")
    lease.acquire("me")
    lease.release()


def test_file_that_is_replaced_for_ever_is_an_error(runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that removes the lock file each time ends in an error, not in a lease or an endless loop."""
    flock = fcntl.flock

    def removing(handle: int, operation: int) -> None:
        flock(handle, operation)
        (runtime_folder / "board.lease").unlink()

    monkeypatch.setattr(fcntl, "flock", removing)
    with pytest.raises(OSError, match="again and again"):
        Lease("board").acquire("me")


@pytest.mark.parametrize("scribble", [(1 << 62) - 1, (1 << 62) - 2, 1 << 40, 4_000_000_000])
def test_scribbled_token_locks_nobody_out(runtime_folder: Path, scribble: int) -> None:
    """A token that the clock could not have led to is replaced, and tokens go on growing from where they were."""
    lease = Lease("board")
    token = lease.acquire("me")
    lease.release()
    (runtime_folder / "board.lease").write_text(json.dumps({"token": scribble}))
    after = lease.acquire("me")
    lease.release()
    assert token < after <= max(token, int(time.time())) + 1
    assert json.loads((runtime_folder / "board.lease").read_text())["token"] == after


def test_clock_that_was_set_back_is_no_scribble(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens grow though the clock now shows a time many years before them, as on boards that start in 1970."""
    lease = Lease("board")
    token = lease.acquire("me")
    lease.release()
    monkeypatch.setattr(time, "time", lambda: 12.0)
    assert lease.acquire("me") == token + 1
    lease.release()


def _link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")


def _file(folder: Path, _: Path) -> None:
    folder.write_bytes(b"")


def _without_sticky_bit(folder: Path, _: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def _of_another_user(folder: Path, _: Path) -> None:
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, 12345)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_link, "link or a file"),
        (_file, "link or a file"),
        (_without_sticky_bit, r"chmod \+t"),
        (_of_another_user, "belongs to user 12345"),
    ],
)
def test_folder_that_others_control_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, Path], None], why: str
) -> None:
    """A folder of locks that another user could exchange or empty is an error with the command that mends it."""
    folder = tmp_path / "leases"
    make(folder, tmp_path)
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(folder))
    for attempt in (lambda: Lease("board").acquire("me"), lambda: holder_of("board")):
        with pytest.raises(OSError, match=why):
            attempt()
    assert not (tmp_path / "elsewhere" / "board.lease").exists()


def test_second_name_of_a_file_is_not_written(runtime_folder: Path, tmp_path: Path) -> None:
    """A lock file that is a hard link to a file of the user is refused, and the file keeps its content."""
    (tmp_path / "thesis").write_text("chapter 1")
    os.link(tmp_path / "thesis", runtime_folder / "board.lease")
    with pytest.raises(OSError, match="not a plain file with a single name"):
        Lease("board").acquire("me")
    assert (tmp_path / "thesis").read_text() == "chapter 1"


def test_pipe_in_place_of_the_lock_file_is_refused(runtime_folder: Path) -> None:
    """A named pipe is refused at once."""
    os.mkfifo(runtime_folder / "board.lease")
    with pytest.raises(OSError, match="not a plain file with a single name"):
        Lease("board").acquire("me")
