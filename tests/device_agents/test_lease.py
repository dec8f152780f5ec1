"""One holder per resource, tokens that only grow, and a lock that dies with its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from device_agents.lease import Lease, LeaseHeld, holder_of

REPOSITORY = Path(__file__).resolve().parents[2]
HOLD = """
import sys
sys.path.insert(0, sys.argv[1])
from device_agents.lease import Lease
lease = Lease("board")
print(lease.acquire("the other process"), flush=True)
sys.stdin.read()
"""


def _hold() -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", HOLD, str(REPOSITORY)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_second_process_is_refused_and_told_who_holds() -> None:
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


def test_resources_do_not_exclude_each_other() -> None:
    """Two names are two locks."""
    first, second = Lease("one"), Lease("two")
    first.acquire("me")
    second.acquire("me")
    first.release()
    second.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"token": "x"}', b"\xff\xff", b'{"token": true}'])
def test_damaged_lock_file_does_not_matter(runtime_folder: Path, content: bytes) -> None:
    """A lock file cut by a power failure costs nobody the device."""
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
    """In a folder that everybody may write to, a link is not followed."""
    (runtime_folder / "board.lease").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        Lease("board").acquire("me")
    assert not (tmp_path / "victim").exists()
