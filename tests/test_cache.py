"""The cache of results: what it returns, what it ignores, and how large it grows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import cache

KEY = cache.key_of("a result")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    return folder / "results"


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 1000])
def test_what_was_stored_is_returned(content: bytes, folder: Path) -> None:
    """A result is returned as it was stored, from a folder that only its owner can read."""
    assert cache.get(KEY) is None
    cache.put(KEY, content)
    assert cache.get(KEY) == content
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / KEY).stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.iterdir()] == [KEY]


@pytest.mark.parametrize(
    "change", [lambda held: held[:-1], lambda held: held + b"x", lambda _: b"", lambda _: b"x" * 40]
)
def test_a_damaged_result_is_ignored(change: object, folder: Path) -> None:
    """A file whose content does not have the hash that it begins with is no result."""
    cache.put(KEY, b"content")
    assert callable(change)
    (folder / KEY).write_bytes(change((folder / KEY).read_bytes()))
    assert cache.get(KEY) is None
    cache.put(KEY, b"content")
    assert cache.get(KEY) == b"content"


def test_what_others_may_write_is_ignored(folder: Path) -> None:
    """A file or a folder that other users may write is not believed, and nothing is stored in such a folder."""
    cache.put(KEY, b"content")
    (folder / KEY).chmod(0o622)
    assert cache.get(KEY) is None
    (folder / KEY).chmod(0o600)
    folder.chmod(0o777)
    assert cache.get(KEY) is None
    cache.put(cache.key_of("another"), b"content")
    assert len(list(folder.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_belongs_to_others_is_ignored(folder: Path) -> None:
    """A file of another user is not believed."""
    cache.put(KEY, b"content")
    os.chown(folder / KEY, 12345, 12345)
    assert cache.get(KEY) is None


def test_links_and_folders_are_ignored(folder: Path, tmp_path: Path) -> None:
    """A link to a valid file is not followed, and a folder in place of a file is no error."""
    cache.put(KEY, b"content")
    (folder / KEY).rename(tmp_path / "elsewhere")
    (folder / KEY).symlink_to(tmp_path / "elsewhere")
    assert cache.get(KEY) is None
    (folder / KEY).unlink()
    (folder / KEY).mkdir()
    cache.put(KEY, b"content")
    assert cache.get(KEY) is None


def test_a_cache_on_a_read_only_disk_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is returned although the time of its use cannot be written."""
    cache.put(KEY, b"content")
    monkeypatch.setattr(os, "utime", _refused)
    assert cache.get(KEY) == b"content"


def _refused(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("place", ["", "/dev/null/cache", "/proc/cache"])
def test_without_a_folder_nothing_is_stored(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable turns the cache off, and a folder that cannot be made is no error."""
    monkeypatch.setenv(cache.VARIABLE, place)
    cache.put(KEY, b"content")
    assert cache.get(KEY) is None


def test_files_of_others_are_not_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts and removes results alone, whatever else lies in the folder."""
    monkeypatch.setattr(cache, "MAX_BYTES", 100)
    cache.put(KEY, bytes(10))
    (folder / "notes.txt").write_bytes(bytes(1000))
    cache.put(cache.key_of("another"), bytes(90))
    assert (folder / "notes.txt").exists()


def test_the_least_recently_used_results_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files take no more than the limit, and the result that was read last stays."""
    monkeypatch.setattr(cache, "MAX_BYTES", 10_000)
    keys = [cache.key_of(str(number)) for number in range(30)]
    for number, key in enumerate(keys):
        cache.put(key, bytes(1000))
        os.utime(folder / key, (number, number))
        cache.get(keys[0])
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 10_000
    assert cache.get(keys[0]) is not None
    assert cache.get(keys[1]) is None


def test_small_results_are_bounded_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small results stay near the limit, and few of them cost a look at all others."""
    monkeypatch.setattr(cache, "MAX_BYTES", 200_000)
    looks: list[Path] = []
    bound = cache._bound
    monkeypatch.setattr(cache, "_bound", lambda place: (looks.append(place), bound(place)))
    for number in range(2500):
        cache.put(cache.key_of(str(number)), bytes(100))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 220_000
    assert 2500 / 32 < len(looks) < 2500 / 8


def test_the_version_of_code_changes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed file of this program counts, and so does another version of a library; links to nowhere do not."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("harness_of_test", "library_of_test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    version = cache.code_version.__wrapped__
    own, other = version("harness_of_test"), version("library_of_test")
    (tmp_path / "harness_of_test" / ".#read.py").symlink_to(tmp_path / "nowhere")
    assert version("harness_of_test") == own
    (tmp_path / "harness_of_test" / "read.py").write_text("pass")
    assert version("harness_of_test") != own
    (tmp_path / "library_of_test-1.1.dist-info").mkdir()
    assert version("library_of_test") != other


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_keys_are_those_of_their_parts(one: list[str], other: list[str]) -> None:
    """Two keys are equal only if all their parts are: no two lists run together."""
    assert (cache.key_of(*one) == cache.key_of(*other)) == (one == other)
