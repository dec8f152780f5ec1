"""One holder per resource, tokens that only grow, and a lock that dies with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from device_agents.lease import Lease, LeaseHeld, evict_stopped, holder_of

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
    deadline = time.monotonic() + 10
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
            assert process.wait(10) == -signal.SIGKILL
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
