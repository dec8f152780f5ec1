"""Exclusive use of a resource of this machine, with a fencing token that only grows.

The lock is an `flock` on one file per resource in a folder that all users of the machine share, so that workspaces,
users and controllers exclude each other. The kernel drops the lock when the supervisor ends, however it ends. The file
holds the last token, its holder, and the time until which it is leased.

A session that shares its resource gets a token in the same way but keeps no lock: any number of them work at the same
time.

A reboot may empty that folder and may set the wall clock back, so the user's cache folder holds a copy of the token.

Every user may write to the file. Tokens begin with the time and grow by one, so the file's token counts only if it is
at most an hour ahead of the wall clock. The next lease replaces any other one. The copy belongs to one user and always
counts, so the tokens of each user grow, whatever others write and however the clock is set.

A lock on a file that is no longer in the folder has no effect: the file is compared with that in the folder after
locking and whenever the lease is renewed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shlex
import signal
import stat
import time
from typing import Any, Dict, Iterator, Optional

from device_agents.file_locks import take

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_RECORD_BYTES = 4096
_MOST = 1 << 62
"""A larger number is not a token."""
_AHEAD_S = 3600
"""How far a token of the shared file may be ahead of the clock, for many leases in one second."""
_HOLDER_CHARS = 200
_TRIES = 10
"""How often a lock is taken again because its file was removed or replaced."""
_SPARE = 1 / 8
_GRACE_S = 5.0
_DYING_S = 2.0
_MOMENT_S = 0.07
"""How long a session waits for a holder that is about to end."""


class LeaseHeld(Exception):
    """Another supervisor holds the resource; `holder` names it, if the file does."""

    def __init__(self, resource: str, holder: str) -> None:
        super().__init__(f"{resource} is leased by {holder}")
        self.holder = holder


class LeaseRemoved(Exception):
    """The lock file was removed or replaced, so the lock excludes nobody any more."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"the lock file of {resource} was removed or replaced")


def runtime_folder() -> str:
    """Return the folder of lock files, one for all users of the machine; it is created on first use.

    Raises OSError if others than root and this user could exchange the folder or the files in it.
    """
    base = "/run/lock"
    if not (os.path.isdir(base) and os.stat(base).st_mode & stat.S_IWOTH):
        base = "/tmp"  # noqa: S108 - shared on purpose
    folder = os.environ.get("HARNESS_RUNTIME_FOLDER") or os.path.join(base, "harness-leases")
    try:
        os.mkdir(folder)
        os.chmod(folder, 0o1777)  # noqa: S103 - as /tmp: everyone may lock, no one may remove
    except FileExistsError:
        pass
    _check_folder(folder)
    return folder


def _check_folder(folder: str) -> None:
    found = os.lstat(folder)
    quoted = shlex.quote(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise _unsafe(folder, "it is a link or a file, not a folder; remove it")
    if found.st_uid not in (0, os.geteuid()):
        why = "it belongs to user %d, who could remove the locks of others; as root, run: chown root %s"
        raise _unsafe(folder, why % (found.st_uid, quoted))
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise _unsafe(folder, "every user may remove the locks of others; run: chmod +t %s" % quoted)


def _unsafe(path: str, why: str) -> OSError:
    return PermissionError(errno.EPERM, "the lock cannot be trusted: " + why, path)


class Lease:
    """The lock on one resource, held from `acquire` to `release` or the end of the process."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.token = 0
        self._path = _path(resource)
        self._record: Dict[str, Any] = {}
        self._file: Optional[int] = None

    def acquire(self, holder: str, shared: bool = False) -> int:
        """Take the lock and return a new fencing token, larger than all before; raises LeaseHeld.

        A `shared` lease keeps no lock, so that others get theirs; only a holder of the lock refuses it.
        Raises OSError if the token cannot be stored, for example on a full disk.
        """
        for _ in range(_TRIES):
            handle = _open_shared(self._path)
            try:
                if not _lock(handle, shared) and not (_evict_stopped(handle) and _lock(handle, shared)):
                    raise LeaseHeld(self.resource, _holder(handle))
                if _is_at(handle, self._path):
                    self.token = self._next_token(handle, holder, shared)
                    self._file = None if shared else os.dup(handle)  # shares the lock
                    return self.token
            finally:
                os.close(handle)
        raise OSError(errno.EBUSY, "the lock file is removed or replaced again and again", self._path)

    def _next_token(self, handle: int, holder: str, shared: bool) -> int:
        """Write a new token to the locked file, and return it."""
        now_s, remembered = int(time.time()), _remembered(self.resource)
        before = int(_read(handle).get("token", 0))
        if before > now_s + _AHEAD_S:  # a scribble, or a wrong clock; the write below repairs it
            before = 0
        token = max(before + 1, remembered + 1, now_s)
        self._record = {"token": token} if shared else {"token": token, "holder": holder, "pid": os.getpid()}
        _write(handle, self._record)
        os.fsync(handle)
        _remember(self.resource, token)
        return token

    def extend(self, deadline_s: float, ttl_s: float) -> None:
        """Record that the lease holds until `deadline_s` of the monotonic clock, in case this process is stopped.

        Raises LeaseRemoved if the lock file was removed or replaced.
        """
        if self._file is not None and not _is_at(self._file, self._path):
            raise LeaseRemoved(self.resource)
        if self._file is not None and deadline_s > self._record.get("until_s", 0.0):
            self._record["until_s"] = deadline_s + _SPARE * ttl_s  # not every heartbeat needs a write
            with contextlib.suppress(OSError):  # the lease itself does not depend on it
                _write(self._file, self._record)

    def release(self) -> None:
        """Release the lock; without a lock this does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def evict_stopped(resource: str) -> bool:
    """Kill a holder that is stopped (SIGSTOP) beyond its lease; returns whether it did."""
    with _existing(_path(resource)) as handle:
        return handle is not None and _evict_stopped(handle)


def holder_of(resource: str) -> Optional[str]:
    """Return the present holder of the resource, or None, without taking the lease."""
    with _existing(_path(resource)) as handle:
        if handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return _holder(handle)
    return None


@contextlib.contextmanager
def _existing(path: str, mode: int = os.O_RDWR) -> Iterator[Optional[int]]:
    """Yield a handle of the file; None if it cannot be opened."""
    try:
        handle = os.open(path, mode | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _holder(handle: int) -> str:
    return str(_read(handle).get("holder", "an unknown holder"))[:_HOLDER_CHARS]


def _path(resource: str) -> str:
    if not _NAME.match(resource):
        raise ValueError(f"the resource {resource!r} is not 1 to 64 letters, digits, dots, dashes or underscores")
    return os.path.join(runtime_folder(), resource + ".lease")


def _lock(handle: int, shared: bool) -> bool:
    """Wait for those who only look at the lock; if the lease is `shared`, also for those that fetch their tokens."""
    return take(handle, fcntl.LOCK_EX, _MOMENT_S, all_pass=shared)


def _open_shared(path: str) -> int:
    """Open the lock file, which is created on first use; raises OSError for anything but a plain file with one name."""
    handle = _open_or_create(path)
    found = os.fstat(handle)
    # A second name could be that of a file of this user, which the token would overwrite.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise _unsafe(path, "it is not a plain file with a single name; remove it")
    return handle


def _open_or_create(path: str) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    except PermissionError:
        owner = os.lstat(path).st_uid
        raise _unsafe(path, "it is closed to this user by user %d; have it removed" % owner) from None
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:  # another supervisor was faster
        return os.open(path, flags)
    os.fchmod(handle, 0o666)
    return handle


def _is_at(handle: int, path: str) -> bool:
    """Return whether the open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _read(handle: int) -> Dict[str, Any]:
    try:
        record = json.loads(os.pread(handle, 4096, 0))
    except (ValueError, RecursionError):  # new, cut off by a power failure, or written by another program
        return {}
    if not isinstance(record, dict) or type(record.get("token")) is not int:
        return {}
    return record if 0 <= record["token"] < _MOST else {}


def _write(handle: int, record: Dict[str, Any]) -> None:
    """Write in place, always the same number of bytes, so that a full disk cannot lose the token."""
    content = json.dumps(record).encode().ljust(_RECORD_BYTES)
    if os.pwrite(handle, content, 0) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _memory(resource: str) -> str:
    shared = os.environ.get("HARNESS_RUNTIME_FOLDER")
    if shared:
        return os.path.join(shared, "%s.%d.token" % (resource, os.geteuid()))
    return os.path.join(os.path.expanduser("~/.cache/harness"), resource + ".token")


def _remembered(resource: str) -> int:
    """Return the last token that this user took here, also before a reboot; 0 if there is none."""
    with _existing(_memory(resource), os.O_RDONLY | os.O_NONBLOCK) as handle:
        return int(_read(handle).get("token", 0)) if handle is not None and _is_own(handle) else 0


def _is_own(handle: int) -> bool:
    """Return whether only this user can have written the file."""
    found = os.fstat(handle)
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _remember(resource: str, token: int) -> None:
    with contextlib.suppress(OSError):  # without a home folder the lock file and the wall clock must suffice
        if not os.path.isabs(_memory(resource)):
            return
        os.makedirs(os.path.dirname(_memory(resource)), mode=0o700, exist_ok=True)
        handle = os.open(_memory(resource), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            if _is_own(handle):
                _write(handle, {"token": token})
                os.fsync(handle)
        finally:
            os.close(handle)


def _evict_stopped(handle: int) -> bool:
    record = _read(handle)
    pid, until_s = record.get("pid"), record.get("until_s")
    if type(pid) is not int or type(until_s) is not float or time.monotonic() < until_s + _GRACE_S:
        return False
    try:
        if not _is_stopped(pid) or not _has_open(pid, handle):
            return False
        os.kill(pid, signal.SIGKILL)  # its worker dies with it (PR_SET_PDEATHSIG)
    except OSError:  # it has ended, or belongs to another user
        return False
    deadline = time.monotonic() + _DYING_S
    while os.path.exists("/proc/%d/exe" % pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return True


def _is_stopped(pid: int) -> bool:
    with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stat_line:
        return stat_line.read().rpartition(")")[2].split()[0] in ("T", "t")


def _has_open(pid: int, handle: int) -> bool:
    """Return whether the process has this file open; its id may have been reused."""
    folder = "/proc/%d/fd" % pid
    ours = os.fstat(handle)
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # already closed
            if os.path.samestat(os.stat(os.path.join(folder, name)), ours):
                return True
    return False
