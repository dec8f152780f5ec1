"""Defaults that several commands and functions share, each defined once."""

from __future__ import annotations

DEFAULT_DEVICE = "cpu01"
"""The device that a command or function uses if none is named."""
SLOWDOWN_THRESHOLD = 0.01
"""The smallest relative change of a latency that counts as a slowdown."""
SPACE_COUNT = 500
"""The most layers of a space that one profiling run measures."""
SPACE_TARGET = 0.05
"""A space is measured until randomly drawn layers are predicted within this median relative error."""
