"""The digest of a file is that of what it holds now, whatever its times say."""

import hashlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.files import file_digest, read_with_digest


def _in_place(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _renamed(path: Path, content: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(content)
    other.rename(path)


def _times_kept(path: Path, content: bytes) -> None:
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _mapped(path: Path, content: bytes) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[: len(content)] = content


@pytest.mark.parametrize("change", [_in_place, _renamed, _times_kept, _mapped])
def test_a_changed_file_never_has_the_old_digest(tmp_path: Path, change: Callable[[Path, bytes], None]) -> None:
    """However a file is changed to another of its size, both readers give the digest of what it holds."""
    path = tmp_path / "net.onnx"
    path.write_bytes(b"one")
    for content in (b"two", b"six"):
        change(path, content)
        wanted = hashlib.sha256(content).hexdigest()
        assert file_digest(path) == wanted
        assert read_with_digest(path, 10) == (content, wanted)


@pytest.mark.parametrize("place", ["missing", "folder", "pipe", "/dev/zero", "nul\0"])
def test_what_is_no_plain_file_has_no_digest(place: str, tmp_path: Path) -> None:
    """Folders, pipes and devices are not read: the reader says what is wrong."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert file_digest(tmp_path / place) == ""
