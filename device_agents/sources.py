"""The source files of this package, read from a folder or from a zip file."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Collection, Iterator, Tuple

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

EMULATOR = "emulated_npu"
HOST_ONLY = tuple(
    f"{EMULATOR}/{part}"
    for part in ("execution", "inference.py", "many_cores", "partition", "reports", "timing/many_cores")
)
"""Parts of the emulator that only `harness.npu` uses: a device times models on one core, and computes no values."""


def read_sources(folder: str = "", without: Collection[str] = ()) -> Iterator[Tuple[str, bytes]]:
    """Yield name and content of each .py and .toml file below a folder of this package, in order of names.

    Names are those in the package. Files and folders that `without` names are not read.
    """
    root = resources.files("device_agents")
    return _below(root / folder if folder else root, f"{folder}/" if folder else "", without)


def sources_digest(folder: str = "", without: Collection[str] = ()) -> str:
    """Return 16 hexadecimal digits of a hash over the Python files that `read_sources` yields."""
    digest = hashlib.sha256()
    for name, content in read_sources(folder, without):
        if name.endswith(".py"):
            digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:16]


def _below(folder: "Traversable", prefix: str, without: Collection[str]) -> Iterator[Tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        name = prefix + entry.name
        if name in without:
            continue
        if name.endswith((".py", ".toml")):
            yield name, entry.read_bytes()
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _below(entry, f"{name}/", without)
