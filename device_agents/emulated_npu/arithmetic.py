"""Integer arithmetic, the alignment of addresses, and units of time that all parts of the emulator share."""

from __future__ import annotations

PS_PER_S = 10**12
PS_PER_NS = 1_000
ALIGNMENT_BYTES = 64
"""Buffers and weights begin at multiples of this."""


def ceil_div(value: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-value // divisor)


def aligned(size: int) -> int:
    """Return the size rounded up to the alignment."""
    return ceil_div(size, ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def aligned_down(size: int) -> int:
    """Return the size or address rounded down to the alignment."""
    return size // ALIGNMENT_BYTES * ALIGNMENT_BYTES
