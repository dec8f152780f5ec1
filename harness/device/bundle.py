"""The agent as one file that any Python 3.9 runs: `python3 agent.pyz`."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = b"import sys\n\nfrom device_agents.__main__ import main\n\nsys.exit(main())\n"


@dataclass(frozen=True)
class Bundle:
    """The zip application and its hash."""

    content: bytes
    sha256: str

    @property
    def path(self) -> str:
        """Where it lies on a device, relative to the home folder."""
        return f".cache/harness/agent-{self.sha256[:16]}.pyz"


def build_bundle() -> Bundle:
    """Packs device_agents; the same sources give the same bytes on every machine."""
    files = {"__main__.py": _MAIN}
    files.update(_sources(resources.files("device_agents"), "device_agents"))
    buffer = io.BytesIO()
    # Stored, not deflated: versions of zlib differ in what they make of the same bytes.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100600 << 16
            archive.writestr(entry, files[name])
    content = buffer.getvalue()
    return Bundle(content, hashlib.sha256(content).hexdigest())


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, f"{prefix}/{entry.name}")
        elif entry.name.endswith((".py", ".toml")):
            yield f"{prefix}/{entry.name}", entry.read_bytes()
