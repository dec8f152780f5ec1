"""Timed models of earlier sessions, in the cache folder of the user.

Each model is a file of its own, named by a hash of the emulator's sources, the machine and the model. It holds JSON
behind its own hash. A file that is damaged, or that another user can write, counts as missing. Files appear whole, by
renaming; beyond MOST_FILES and MOST_BYTES, those used longest ago are removed. A folder that cannot be used holds
nothing, and every session compiles for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from typing import Iterator, List, Optional, Tuple

from device_agents.backends.emulated_npu.timed_model import TimedModel, from_json, to_json

MOST_FILES = 20_000
MOST_BYTES = 128 << 20
_FILE_BYTES = 8 << 20
_LOOK_EVERY = 1000
"""Files written between two looks at the limits; the first look is at the first file."""
_ENDING = ".json"


def cache_folder() -> str:
    """Return the folder of timed models of this user."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):  # it would be below the worker's folder, which ends with the session
        caches = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(caches, "harness", "npu-timings")


class TimingCache:
    """The timed models of one version of the emulator and one machine."""

    def __init__(self, version: str, folder: Optional[str] = None) -> None:
        self._version = version
        self._folder = folder or cache_folder()
        self._written = 0

    def get(self, model: bytes) -> Optional[TimedModel]:
        """Return what an earlier session found for a model, None if there is nothing."""
        path = self._path(model)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                if not _is_own(os.fstat(file.fileno())):
                    return None
                digest, _, content = file.read(_FILE_BYTES).partition(b"\n")
            if hashlib.sha256(content).hexdigest().encode() != digest:
                raise ValueError("the file is damaged")
            timed = from_json(content)
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):  # a disk that is read only
            os.utime(path)
        return timed

    def put(self, model: bytes, timed: TimedModel) -> None:
        """Keep what was found for a model, if the folder can be written."""
        content = to_json(timed)
        whole = hashlib.sha256(content).hexdigest().encode() + b"\n" + content
        if len(whole) > _FILE_BYTES:
            return
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            if not self._written % _LOOK_EVERY:
                _trim(self._folder)
            self._written += 1
            handle, part = tempfile.mkstemp(suffix=".part", dir=self._folder)
            try:
                with open(handle, "wb") as file:
                    file.write(whole)
                os.replace(part, self._path(model))
            except BaseException:
                os.unlink(part)
                raise

    def _path(self, model: bytes) -> str:
        digest = hashlib.sha256(self._version.encode() + b"\0" + model).hexdigest()
        return os.path.join(self._folder, digest + _ENDING)


def _is_own(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _trim(folder: str) -> None:
    """Remove the files used longest ago until a tenth of the room is free, if there are too many."""
    files: List[Tuple[float, int, str]] = sorted(_files(folder))
    total = sum(size for _, size, _ in files)
    if len(files) <= MOST_FILES and total <= MOST_BYTES:
        return
    count = len(files)
    for _, size, path in files:
        if count <= MOST_FILES * 9 // 10 and total <= MOST_BYTES * 9 // 10:
            break
        with contextlib.suppress(FileNotFoundError):  # another session trims, too
            os.unlink(path)
        count, total = count - 1, total - size


def _files(folder: str) -> Iterator[Tuple[float, int, str]]:
    """Yield the time of the last use, the size and the path of each file, parts of killed sessions included."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield found.st_mtime, found.st_size, entry.path
