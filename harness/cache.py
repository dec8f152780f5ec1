"""Results that can be computed again, kept in the user's cache folder under the hash of all that they depend on.

The folder is `results` in `HARNESS_CACHE_DIR`, else in `harness` in the system's folder for caches; an empty
`HARNESS_CACHE_DIR` turns the cache off. A file begins with the hash of its content. Files and folders that belong to
another user, or that others may write, are ignored, and so are damaged ones: the result is then computed. Errors of the
disk are no errors here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

VARIABLE = "HARNESS_CACHE_DIR"
MAX_BYTES = 1 << 29
"""About the most that all files take together; the least recently used ones are removed."""
_MAX_FILE_BYTES = 1 << 28
_LARGE_SHARE = 1024
"""Sizes are added up after each file that takes this part of `MAX_BYTES`, and after every 16th smaller one."""
_HASH_BYTES = 32
_FOLDER = "results"
"""Devices keep the tokens of leases beside it."""
_OWN_NAME = re.compile(r"[0-9a-f]{64}|\.writing-[0-9a-f]{12}")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def key_of(*parts: str) -> str:
    """Return the key of a result that depends on these texts."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def get(key: str) -> bytes | None:
    """Return what was stored under a key; None if there is nothing that can be trusted."""
    folder = _folder()
    if folder is None or not _is_own(folder, stat.S_ISDIR):
        return None
    try:
        handle = os.open(folder / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not _is_ours(status, stat.S_ISREG) or status.st_size > _MAX_FILE_BYTES:
                return None
            with open(handle, "rb", closefd=False) as file:
                digest, content = file.read(_HASH_BYTES), file.read(_MAX_FILE_BYTES)
            with contextlib.suppress(OSError):  # a disk that is read only
                os.utime(handle)
        finally:
            os.close(handle)
    except OSError:
        return None
    return content if hashlib.sha256(content).digest() == digest else None


def put(key: str, content: bytes) -> None:
    """Store a result, whole or not at all."""
    folder = _folder()
    if folder is None or len(content) + _HASH_BYTES > _MAX_FILE_BYTES:
        return
    temporary = folder / f".writing-{secrets.token_hex(6)}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(folder, stat.S_ISDIR):
            return
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest())
                file.write(content)
            temporary.replace(folder / key)
        finally:
            temporary.unlink(missing_ok=True)
        if len(content) * _LARGE_SHARE >= MAX_BYTES or key.startswith("0"):
            _bound(folder)
    except OSError:
        return


@functools.cache
def code_version(*packages: str) -> str:
    """Return a text that changes with the code of these packages, which are imported from files."""
    return key_of(*(part for package in packages for part in _files_of(package)))


def _files_of(package: str) -> Iterable[str]:
    from importlib.util import find_spec

    found = find_spec(package)
    for place in (found.submodule_search_locations or ()) if found else ():
        folder = Path(place)
        # The version of another distribution is in the name of the folder beside it.
        own = package.startswith("harness")
        files = folder.rglob("*.py") if own else (folder / "__init__.py", *folder.parent.glob(f"{package}*.dist-info"))
        for path in sorted(files):
            with contextlib.suppress(FileNotFoundError):  # editors leave links to nowhere beside a file
                status = path.stat()
                yield f"{path} {status.st_size} {status.st_mtime_ns}"


def _folder() -> Path | None:
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given).absolute() / _FOLDER if given else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "harness" / _FOLDER
    system = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(system) if os.path.isabs(system) else home / ".cache") / "harness" / _FOLDER


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        return _is_ours(path.lstat(), is_kind)
    except OSError:
        return False


def _is_ours(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Return whether a file or folder is of this kind, belongs to this user, and nobody else may write it."""
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS


def _bound(folder: Path) -> None:
    """Remove the least recently used files until the others take at most nine tenths of `MAX_BYTES`."""
    with os.scandir(folder) as found:
        states = [(one.stat(follow_symlinks=False), one.path) for one in found if _OWN_NAME.fullmatch(one.name)]
    files = sorted((state.st_mtime, state.st_size, path) for state, path in states)
    total = sum(size for _, size, _ in files)
    if total <= MAX_BYTES:
        return
    for _, size, path in files:
        if total <= MAX_BYTES * 9 // 10:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
