"""The cache of results that host and agents share: what it returns, what it ignores, and how large it grows."""

import errno
import multiprocessing
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from device_agents import result_cache as cache

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


def test_results_under_the_name_of_another_are_ignored(folder: Path) -> None:
    """Two files that were swapped are no results, although each has the hash that it was written with."""
    other = cache.key_of("another")
    cache.put(KEY, b"content")
    cache.put(other, b"other content")
    (folder / KEY).rename(folder / "aside")
    (folder / other).rename(folder / KEY)
    (folder / "aside").rename(folder / other)
    assert (cache.get(KEY), cache.get(other)) == (None, None)


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


def test_what_belongs_to_others_is_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of another user is not believed, and nothing is stored in it."""
    cache.put(KEY, b"content")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    cache.put(cache.key_of("another"), b"content")
    assert cache.get(KEY) is None
    assert [path.name for path in folder.iterdir()] == [KEY]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_others_is_ignored(folder: Path) -> None:
    """A file of another user in a folder of this one is not believed."""
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


def test_nothing_is_stored_on_a_read_only_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which no file can be made is no error, and keeps what it holds."""
    cache.put(KEY, b"content")
    opened = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *mode: (_refused if flags & os.O_CREAT else opened)(path, flags, *mode)
    )
    cache.put(KEY, b"other")
    cache.put(cache.key_of("another"), b"content")
    assert [path.name for path in folder.iterdir()] == [KEY]
    assert cache.get(KEY) == b"content"


def _refused(*_: object, **__: object) -> int:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_full_disk_leaves_no_part_of_a_file(folder: Path) -> None:
    """Where the disk takes only the beginning of a file, nothing is stored, and earlier results stay."""
    cache.put(KEY, b"content")

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # the system refuses to write beyond it
        cache.put(cache.key_of("another"), bytes(100_000))
        cache.put(KEY, bytes(100_000))

    assert _in_processes(fill, 1) == [0]
    assert [path.name for path in folder.iterdir()] == [KEY]
    assert cache.get(KEY) == b"content"


def _in_processes(work: Callable[[], None], count: int) -> list[int | None]:
    """Return the exit codes of so many processes that do the same work at once."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def test_processes_that_write_at_once_read_whole_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes that write, read and remove the same results find each of them whole or not at all."""
    monkeypatch.setattr(cache, "MAX_BYTES", 10 * 4096)
    keys = [cache.key_of(str(number)) for number in range(16)]

    def work() -> None:
        for turn in range(100):
            key = keys[turn * os.getpid() % len(keys)]
            cache.put(key, key.encode() * (turn % 50))
            found = cache.get(key)
            assert found is None or not found.replace(key.encode(), b"")

    assert _in_processes(work, 3) == [0, 0, 0]
    assert {path.name for path in folder.iterdir()} <= {*keys}


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
    monkeypatch.setattr(cache, "MAX_BYTES", 50_000)
    keys = [cache.key_of(str(number)) for number in range(30)]
    for number, key in enumerate(keys):
        cache.put(key, bytes(5000))
        os.utime(folder / key, (number, number))
        cache.get(keys[0])
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 50_000
    assert cache.get(keys[0]) is not None
    assert cache.get(keys[1]) is None


def test_small_results_are_bounded_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small results count as blocks of the disk and stay near the limit; few of them cost a look at all others."""
    monkeypatch.setattr(cache, "MAX_BYTES", 512 * 4096)
    monkeypatch.setattr(cache, "_LOOKS", 32)
    looks: list[str] = []
    bound = cache._bound
    monkeypatch.setattr(cache, "_bound", lambda place: (looks.append(place), bound(place)))
    for number in range(800):
        cache.put(cache.key_of(str(number)), b"content")
    assert len(list(folder.iterdir())) < 512 * 1.2
    assert 800 / 32 < len(looks) < 800 / 8


@pytest.mark.parametrize(
    ("given", "caches", "wanted"),
    [(None, "", ".cache/harness"), (None, "relative", ".cache/harness"), ("", "", None), ("given", "", "given")],
)
def test_the_folder_of_caches(
    given: str | None, caches: str, wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable comes first, relative to where the program was started; else the folder is in the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", caches)
    monkeypatch.delenv(cache.VARIABLE)
    if given is not None:
        monkeypatch.setenv(cache.VARIABLE, given)
    assert cache.folder() == ("" if wanted is None else str(tmp_path / wanted))
    monkeypatch.setattr("sys.platform", "darwin")
    if given is None:
        assert cache.folder() == str(tmp_path / "Library" / "Caches" / "harness")


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_keys_are_those_of_their_parts(one: list[str], other: list[str]) -> None:
    """Two keys are equal only if all their parts are: no two lists run together."""
    assert (cache.key_of(*one) == cache.key_of(*other)) == (one == other)
