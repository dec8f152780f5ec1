"""The cache that a core of a device has to itself, as its fingerprint reports it."""

from __future__ import annotations

from collections.abc import Mapping

from harness.text import whole_number

DEFAULT_BYTES = 512 << 10
_MOST_DIGITS = 15


def core_cache_bytes(clock: str, fingerprint: Mapping[str, str]) -> int | None:
    """Return the size of the cache; None on a device with a clock of its own, whose latency does not depend on it."""
    if clock == "device":
        return None
    return whole_number(fingerprint.get("core_cache_bytes", ""), _MOST_DIGITS) or DEFAULT_BYTES
