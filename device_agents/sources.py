"""The source files of this package, read from a folder or from a zip file."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Iterator, Tuple

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def read_sources(folder: str = "", without: str = "") -> Iterator[Tuple[str, bytes]]:
    """Yield name and content of each .py and .toml file below a folder of this package, in order of names.

    Files below `without`, a folder in it, are not read.
    """
    root = resources.files("device_agents")
    return _below(root / folder if folder else root, "", without)


def sources_digest(folder: str = "", without: str = "") -> str:
    """Return 16 hexadecimal digits of a hash over the Python files of a folder, except those below `without`."""
    digest = hashlib.sha256()
    for name, content in read_sources(folder, without):
        if name.endswith(".py"):
            digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:16]


def _below(folder: "Traversable", prefix: str, without: str) -> Iterator[Tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        name = prefix + entry.name
        if name.endswith((".py", ".toml")):
            yield name, entry.read_bytes()
        elif entry.is_dir() and entry.name != "__pycache__" and name != without:
            yield from _below(entry, f"{name}/", without)
