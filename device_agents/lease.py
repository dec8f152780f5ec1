"""Exclusive use of a resource of this machine, with a fencing token that only ever grows.

The lock is an `flock` on one file per resource in a folder that all users of the machine share, so that
two workspaces, two users and two controllers exclude each other. The kernel drops the lock when the
supervisor ends, however it ends. The file keeps the last token and who took it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import tempfile
import time
from typing import Any, Dict, Optional

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class LeaseHeld(Exception):
    """Another supervisor holds the resource; `holder` says who, as far as the file tells."""

    def __init__(self, resource: str, holder: str) -> None:
        super().__init__(f"{resource} is leased by {holder}")
        self.resource = resource
        self.holder = holder


def runtime_folder() -> str:
    """The per-machine folder of lock files, the same for every user; created on first use."""
    base = "/run/lock"
    if not (os.path.isdir(base) and os.stat(base).st_mode & stat.S_IWOTH):
        base = tempfile.gettempdir() if os.name != "posix" else "/tmp"  # noqa: S108 - shared on purpose
    folder = os.environ.get("HARNESS_RUNTIME_FOLDER") or os.path.join(base, "harness-leases")
    try:
        os.mkdir(folder)
        os.chmod(folder, 0o1777)  # noqa: S103 - as /tmp: everybody may lock, nobody may remove
    except FileExistsError:
        pass
    return folder


class Lease:
    """The lock on one resource, held from `acquire` to `release` or the end of the process."""

    def __init__(self, resource: str) -> None:
        if not _NAME.match(resource):
            raise ValueError(f"resource name {resource!r} is not a plain name")
        self.resource = resource
        self.token = 0
        self._file: Optional[int] = None

    def acquire(self, holder: str) -> int:
        """Takes the lock or raises LeaseHeld; returns the new fencing token, larger than any before."""
        handle = _open_shared(os.path.join(runtime_folder(), self.resource + ".lease"))
        if not _lock(handle):
            record = _read(handle)
            os.close(handle)
            raise LeaseHeld(self.resource, str(record.get("holder", "an unknown holder")))
        # The folder may not outlive a reboot; the seconds keep tokens growing all the same.
        self.token = max(int(_read(handle).get("token", 0)) + 1, int(time.time()))
        _write(handle, {"token": self.token, "holder": holder, "pid": os.getpid()})
        self._file = handle
        return self.token

    def release(self) -> None:
        """Gives the lock back; harmless where it is not held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def holder_of(resource: str) -> Optional[str]:
    """Who holds the resource now, or None; takes nothing."""
    if not _NAME.match(resource):
        raise ValueError(f"resource name {resource!r} is not a plain name")
    try:
        handle = os.open(os.path.join(runtime_folder(), resource + ".lease"), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return str(_read(handle).get("holder", "an unknown holder"))
    finally:
        os.close(handle)
    return None


def _lock(handle: int) -> bool:
    """Tries a few times: `holder_of` of another process locks for a moment, too."""
    for pause_s in (0.02, 0.05, 0.0):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(pause_s)
    return False


def _open_shared(path: str) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:  # another supervisor was faster
        return os.open(path, flags)
    os.fchmod(handle, 0o666)
    return handle


def _read(handle: int) -> Dict[str, Any]:
    try:
        record = json.loads(os.pread(handle, 4096, 0))
    except ValueError:  # first use, or a write cut by a power failure
        return {}
    return record if isinstance(record, dict) and type(record.get("token")) is int else {}


def _write(handle: int, record: Dict[str, Any]) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(record).encode(), 0)
    os.fsync(handle)
