"""Pack the agent into one file that Python 3.9 or newer runs: `python3 agent.pyz`."""

import hashlib
import io
import zipfile
from dataclasses import dataclass

from device_agents.sources import HOST_ONLY, read_sources

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = b"""\
import sys

if sys.version_info < (3, 9):
    sys.exit("the agent needs Python 3.9 or newer, and this is %d.%d.%d" % sys.version_info[:3])

from device_agents.__main__ import main

sys.exit(main())
"""
"""Every Python reads it, so that one which is too old says so."""


@dataclass(frozen=True)
class Bundle:
    """A zip application and its hash."""

    content: bytes
    sha256: str

    @property
    def path(self) -> str:
        """Its path on a device, relative to the home folder."""
        return f".cache/harness/agent-{self.sha256[:16]}.pyz"


def build_bundle() -> Bundle:
    """Pack device_agents without what only the host runs; equal sources give equal bytes on every machine."""
    files = {"__main__.py": _MAIN}
    files.update((f"device_agents/{name}", content) for name, content in read_sources(without=HOST_ONLY))
    buffer = io.BytesIO()
    # Stored, not deflated: versions of zlib compress the same bytes differently.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100600 << 16
            archive.writestr(entry, files[name])
    content = buffer.getvalue()
    return Bundle(content, hashlib.sha256(content).hexdigest())
