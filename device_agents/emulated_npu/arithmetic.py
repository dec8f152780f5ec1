"""Integer arithmetic and units of time that all parts of the emulator share."""

from __future__ import annotations

PS_PER_S = 10**12
PS_PER_NS = 1_000


def ceil_div(value: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-value // divisor)
