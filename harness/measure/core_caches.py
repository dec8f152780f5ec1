"""The cache that a core of a device has to itself, as its fingerprint reports it."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_BYTES = 512 << 10
_MOST_DIGITS = 15


def core_cache_bytes(clock: str, fingerprint: Mapping[str, str]) -> int | None:
    """Return the size of the cache; None on a device with a clock of its own, whose latency does not depend on it."""
    if clock == "device":
        return None
    reported = fingerprint.get("core_cache_bytes", "")
    is_number = reported.isascii() and reported.isdigit() and len(reported) <= _MOST_DIGITS
    return (int(reported) if is_number else 0) or DEFAULT_BYTES
