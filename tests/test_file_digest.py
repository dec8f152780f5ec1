"""Digests of files that did not change are known without reading them; a changed file never has the old one."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import cache, file_digest
from harness.file_digest import read_with_digest

LATER_NS = 10**10


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, in which small files count as large."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(file_digest, "_LARGE_BYTES", 0)
    return tmp_path / "cache" / "results"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file have been written some time ago."""
    now_ns = time.time_ns
    monkeypatch.setattr("harness.file_digest.time.time_ns", lambda: now_ns() + LATER_NS)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests that were computed from what a file holds."""
    found: list[str] = []
    compute = hashlib.file_digest

    def counted(*given: object) -> object:
        digest = compute(*given)  # type: ignore[arg-type]
        found.append(digest.hexdigest())
        return digest

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return found


def _in_place(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _renamed(path: Path, content: bytes) -> None:
    beside = path.with_name("new")
    beside.write_bytes(content)
    beside.replace(path)


def _times_kept(path: Path, content: bytes) -> None:
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _one_byte(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content[:1])


def _linked(path: Path, content: bytes) -> None:
    other = path.with_name(f"other-{time.time_ns()}")
    other.write_bytes(content)
    path.unlink()
    path.symlink_to(other)


def _moved_folder(path: Path, content: bytes) -> None:
    other = path.parent.with_name(f"moved-{time.time_ns()}")
    other.mkdir()
    (other / path.name).write_bytes(content)
    path.parent.rename(other.with_name(f"{other.name}-before"))
    other.rename(path.parent)


CHANGES = (_in_place, _renamed, _times_kept, _one_byte, _linked, _moved_folder)


@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.binary(min_size=3, max_size=3)), max_size=5))
@pytest.mark.usefixtures("later")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_file_never_has_the_old_digest(
    tmp_path: Path, changes: list[tuple[Callable[[Path, bytes], None], bytes]]
) -> None:
    """However a file is changed to others of its size, with its times set back or not, the digest is that of today."""
    path = tmp_path / f"files-{time.time_ns()}" / "net.onnx"
    path.parent.mkdir()
    path.write_bytes(b"one")
    for change, content in changes:
        assert file_digest.file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
        time.sleep(0.01)  # longer than a tick of the clock that dates changes
        change(path, content)
    for _ in range(2):
        wanted = path.read_bytes()
        assert file_digest.file_digest(path) == hashlib.sha256(wanted).hexdigest()
        assert read_with_digest(path, 10) == (wanted, hashlib.sha256(wanted).hexdigest())


@pytest.mark.usefixtures("later")
def test_an_unchanged_file_is_hashed_once(tmp_path: Path, hashed: list[str]) -> None:
    """A file is hashed again only under another name, or after a change."""
    path = tmp_path / "net.onnx"
    path.write_bytes(b"content")
    assert len({file_digest.file_digest(path) for _ in range(3)}) == len(hashed) == 1
    assert read_with_digest(path, 10) == (b"content", hashed[0])
    path.touch()
    file_digest.file_digest(path)
    assert hashed == hashed[:1] * 2
    with cache.unused():
        file_digest.file_digest(path)
    assert len(hashed) == 3


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("entry", [b"", b"\xff\xfe" * 32, b"null", b"{}", b"[" * 64, b"F" * 64, b"0" * 65])
def test_an_entry_that_is_no_digest_is_ignored(entry: bytes, tmp_path: Path, folder: Path) -> None:
    """What the cache holds in place of a digest is replaced by the digest of the file."""
    path = tmp_path / "net.onnx"
    path.write_bytes(b"content")
    wanted = file_digest.file_digest(path)
    (stored,) = folder.iterdir()
    for read in (file_digest.file_digest, lambda path: read_with_digest(path, 10)[1]):
        cache.put(stored.name, entry)
        assert read(path) == wanted
        assert cache.get(stored.name) == wanted.encode()


def test_a_file_that_was_just_written_is_hashed_each_time(tmp_path: Path, hashed: list[str], folder: Path) -> None:
    """A further change within the same tick of the clock would not show."""
    path = tmp_path / "net.onnx"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        assert file_digest.file_digest(path) == hashlib.sha256(content).hexdigest()
    assert len(hashed) == 2
    assert not folder.exists()


@pytest.mark.usefixtures("later")
def test_a_file_that_changes_while_it_is_hashed_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """A digest of what was there before belongs to no state of the file."""
    path, compute = tmp_path / "net.onnx", hashlib.file_digest
    path.write_bytes(b"one")

    def changed(*given: object) -> object:
        digest = compute(*given)  # type: ignore[arg-type]
        path.write_bytes(b"other")
        return digest

    monkeypatch.setattr(hashlib, "file_digest", changed)
    file_digest.file_digest(path)
    assert not folder.exists()


@pytest.mark.parametrize("place", ["missing", "folder", "pipe", "/dev/zero", "nul\0"])
def test_what_is_no_plain_file_has_no_digest(place: str, tmp_path: Path) -> None:
    """Folders, pipes and devices are not read: the reader says what is wrong."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert file_digest.file_digest(tmp_path / place) == ""
