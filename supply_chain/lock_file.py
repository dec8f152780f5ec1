"""The lock file: for each package its version, and the SHA-256 of every file of it that pip may install."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FIRST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)(?: ; (.+?))? \\\Z")
_HASH = re.compile(r"    --hash=sha256:([0-9a-f]{64})( \\)?\Z")


@dataclass(frozen=True)
class LockedPackage:
    """A package: its normalised name, its version, the marker of platforms that need it, and its files' hashes."""

    name: str
    version: str
    marker: str
    hashes: Sequence[str]


def canonical(name: str) -> str:
    """Return a package's name in the one form that indexes use: lower case, with single dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> tuple[LockedPackage, ...]:
    """Return the packages of a lock file, by name; raises ValueError for any line of another form.

    So a lock file cannot contain an option, the address of an index, a path, or a package without a hash.
    """
    found: list[tuple[str, str, str, list[str]]] = []
    is_open = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if first := _FIRST.match(line):
            if is_open:
                raise ValueError(f"{path.name}, line {number}: the package before it has no last hash")
            found.append((canonical(first[1]), first[2], first[3] or "", []))
            is_open = True
        elif (one := _HASH.match(line)) and is_open:
            found[-1][3].append(one[1])
            is_open = one[2] is not None
        else:
            raise ValueError(f"{path.name}, line {number}: neither a pinned package nor its hash: {line[:80]!r}")
    if is_open:
        raise ValueError(f"{path.name} ends within a package")
    return tuple(LockedPackage(*one) for one in sorted(found))
