"""Tables of emulated devices that are part of the package: such a device is the same on every machine.

`make published` measures them; `benchmarks/published.py` describes how.
"""

from __future__ import annotations

from pathlib import Path

from harness.lut.table import Lut

PUBLISHED = Path(__file__).resolve().parent / "published"
"""Holds `<device>/<table>/`, as the folder `lut/` of a workspace does."""


def is_published(table: Lut) -> bool:
    """Return whether a table is one of the package."""
    return table.path.resolve().is_relative_to(PUBLISHED)
