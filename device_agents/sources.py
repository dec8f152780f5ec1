"""The source files of this package, read from a folder or from a zip file."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Iterator, Tuple

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def read_sources(folder: str = "") -> Iterator[Tuple[str, bytes]]:
    """Yield name and content of each .py and .toml file below a folder of this package, in order of names."""
    root = resources.files("device_agents")
    return _below(root / folder if folder else root, "")


def sources_digest(folder: str = "", without: str = "") -> str:
    """Return 16 hexadecimal digits of a hash over the Python files of a folder, except those below `without`."""
    digest = hashlib.sha256()
    for name, content in read_sources(folder):
        if name.endswith(".py") and not (without and name.startswith(without + "/")):
            digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:16]


def _below(folder: "Traversable", prefix: str) -> Iterator[Tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _below(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".toml")):
            yield prefix + entry.name, entry.read_bytes()
